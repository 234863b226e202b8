"""Sound files as other programs write them: each way to read gives the samples, or refuses the file by its name."""

import io
import tarfile

import pytest
import zstandard

from fkat_data.datasets import IterableJsonDataset, JsonDataset, TarDataset
from fkat_data.errors import ConfigurationError
from fkat_data.streaming import LocalDataset, StreamingDataset
from fkat_data.tools import convert


def streamed(path, **options):
    stream = StreamingDataset(local=str(path), batch_size=1, **options)
    return [stream[row] for row in range(len(stream))]


def converted(path, **options):
    out = path.parent / f"{path.name}.mds"
    convert(path, out, **options)
    return list(LocalDataset(out))


TAR_READERS = {
    "map-style": lambda path: list(TarDataset(str(path), decode="bytes")),
    "stream": lambda path: streamed(path, decode="bytes"),
    "convert": lambda path: converted(path, columns={"txt": "bytes"}),
}
JSON_READERS = {
    "map-style": lambda path: list(JsonDataset(str(path))),
    "iterable": lambda path: list(IterableJsonDataset(str(path))),
    "convert": converted,
}


def write_tar(path, add, form=tarfile.GNU_FORMAT):
    with tarfile.open(path, "w", format=form) as writer:
        add(writer)
    return path


def add_text(writer, name, text=b"text", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(text)
    for field, value in fields.items():
        setattr(info, field, value)
    writer.addfile(info, io.BytesIO(text))


@pytest.mark.parametrize("reader", TAR_READERS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_files_with_long_names_that_are_not_ascii_are_read(tmp_path, reader, form):
    names = [f"{'f' * 60}/{'n' * cut}{'é日' * 15}" for cut in range(5)]
    path = write_tar(tmp_path / "a.tar", lambda tar: [add_text(tar, f"{name}.txt") for name in names], form)
    found = [(row["__key__"], row["txt"]) for row in TAR_READERS[reader](path)]
    assert found == [(name, b"text") for name in names]


UNFIT = {
    "hard link": lambda tar: add_text(tar, "b.txt", b"", type=tarfile.LNKTYPE, linkname="a.txt"),
    "symbolic link": lambda tar: add_text(tar, "b.txt", b"", type=tarfile.SYMTYPE, linkname="a.txt"),
    "sparse": lambda tar: add_text(tar, "b.txt", b"", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    "absolute": lambda tar: add_text(tar, "/b.txt"),
    "not UTF-8": lambda tar: add_text(tar, "b\udce9.txt"),
    "two members with the extension": lambda tar: add_text(tar, "a.txt"),
}


@pytest.mark.parametrize("reader", TAR_READERS)
@pytest.mark.parametrize("case", UNFIT)
def test_tar_files_with_members_that_no_sample_can_have_are_refused_and_not_called_corrupt(tmp_path, reader, case):
    form = tarfile.PAX_FORMAT if case == "sparse" else tarfile.GNU_FORMAT
    path = write_tar(tmp_path / "a.tar", lambda tar: [add_text(tar, "a.txt"), UNFIT[case](tar)], form)
    with pytest.raises(ConfigurationError, match=r"a\.tar.*member.* at byte 1,0?[0-9]+ is "):
        TAR_READERS[reader](path)


def zstd_of_large_window(text):
    """A frame as ``zstd --long=31`` writes it of a pipe: its header asks for a window of 2 GiB. The text is stored."""
    magic, descriptor, window = b"\x28\xb5\x2f\xfd", b"\0", bytes([(31 - 10) << 3])
    frame = magic + descriptor + window + (len(text) << 3 | 1).to_bytes(3, "little") + text
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 31
    return frame


@pytest.mark.parametrize("reader", JSON_READERS)
def test_zstd_files_with_windows_of_2_gib_are_read(tmp_path, reader):
    path = tmp_path / "rows.jsonl.zst"
    path.write_bytes(zstd_of_large_window(b'{"a": 1}\n{"a": 2}\n'))
    assert JSON_READERS[reader](path) == [{"a": 1}, {"a": 2}]
