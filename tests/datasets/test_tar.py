"""Samples of tar files by index: the right ones, from anywhere, and nothing of the others is read."""

import gzip
from itertools import chain
from pathlib import Path

import pytest
from archive_examples import archive
from walks import at_state, recorded

from fkat_data import DataLoaderFactory, ShardedDataLoader
from fkat_data.datasets import TarDataset
from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files.opening import RangedFile


def write(path, first, count, size=10):
    names = [
        (f"{number:04}", f"text {number} ".encode() * size, b"%d" % number) for number in range(first, first + count)
    ]
    path.write_bytes(archive([m for key, text, label in names for m in ((f"{key}.txt", text), (f"{key}.cls", label))]))
    return str(path)


@pytest.fixture
def paths(tmp_path):
    return [write(tmp_path / "a.tar", 0, 7), write(tmp_path / "b.tar", 7, 5)]


def test_samples_come_by_index_from_several_files(paths):
    dataset = TarDataset(paths)
    assert len(dataset) == 12
    assert dataset[8] == dataset[-4] == {"__key__": "0008", "cls": 8, "txt": "text 8 " * 10}
    assert [sample["cls"] for sample in dataset.__getitems__([11, 0, 7, 0])] == [11, 0, 7, 0]
    assert dataset.__getitems__([]) == []


def test_columns_and_decoders_are_chosen(paths, tmp_path):
    dataset = TarDataset(paths, ["cls", "__url__"], decode={"cls": lambda content: int(content) + 100})
    assert dataset[7] == {"cls": 107, "__url__": paths[1]}
    assert TarDataset(paths, decode=len)[0] == {"__key__": "0000", "cls": 1, "txt": 70}
    assert TarDataset(paths, decode="bytes")[0]["cls"] == b"0"
    (tmp_path / "p.tar").write_bytes(archive([("a.pth", b""), ("a.flac", b"raw")]))
    for decode in (None, {"flac": "pickle"}, "pickle"):
        with pytest.raises(ConfigurationError, match=r"allow_unsafe_types.*p\.tar.*hold pickles"):
            TarDataset(str(tmp_path / "p.tar"), decode=decode)
    assert TarDataset(str(tmp_path / "p.tar"), ["flac"])[0] == {"flac": b"raw"}
    with pytest.raises(ShardCorruptError, match=r"p\.tar.*row 0, member 'a\.pth' at byte 512"):
        TarDataset(str(tmp_path / "p.tar"), allow_unsafe_types=True)[0]
    for options in ({"columns": ["jpg"]}, {"decode": {"jpg": "bytes"}}, {"decode": "pil"}, {"columns": []}):
        with pytest.raises(ConfigurationError, match=r"columns|decode"):
            TarDataset(paths, **options)


def test_what_is_no_archive_is_an_error(tmp_path, paths):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(Path(paths[0]).read_bytes()))
    with pytest.raises(ConfigurationError, match="without compression"):
        TarDataset(str(tmp_path / "a.tar.gz"))
    dataset = TarDataset(paths)
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:1000])
    with pytest.raises(ShardCorruptError, match=r"b\.tar.*has become shorter"):
        dataset[11]


def test_a_resume_reads_no_content_that_it_passes_over(tmp_path, monkeypatch):
    """Contents are larger than what is read with a header."""
    path = write(tmp_path / "a.tar", 0, 40, size=10_000)
    size, reads = Path(path).stat().st_size, []
    real = RangedFile.read

    def noted(self, start, stop):
        reads.append((start, stop))
        return real(self, start, stop)

    monkeypatch.setattr(RangedFile, "read", noted)

    def made():
        factory = DataLoaderFactory(dataset_generator=TarDataset, batch_size=4)
        return ShardedDataLoader(3, [path], factory, multiprocessing=False)

    whole, states = recorded(made(), lambda microbatch: microbatch["cls"].tolist())
    assert list(chain(*whole)) == list(range(40))
    loader = at_state(made(), states[8])
    reads.clear()
    assert [microbatch["cls"].tolist() for microbatch in loader] == whole[8:]
    headers = sum(stop - start for start, stop in reads if stop - start <= 16 << 10)
    contents = [start for start, stop in reads if stop - start > 16 << 10]
    assert min(contents) > 0.7 * size
    assert headers < 0.5 * size
