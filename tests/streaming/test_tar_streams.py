"""Tar files as streams: the same samples in the same orders as MDS shards, from everywhere, in any world."""

import bz2
import gzip
import io
import lzma
import pickle
from pathlib import Path

import pytest
import torch
import zstandard
from file_streams import COUNT, OPTIONS, all_same
from PIL import Image
from streaming_examples import numbers
from tar_examples import DECODE, archive, write_both, write_tar

from fkat_data.errors import ConfigurationError, DownloadError, ShardCorruptError, ShardNotFoundError
from fkat_data.streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from fkat_data.streaming.formats import open_shard

pytestmark = pytest.mark.usefixtures("own_caches")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The options that read the dataset of each format."""
    mds, tars = write_both(tmp_path_factory.mktemp("both"), COUNT)
    return {"local": mds}, {"local": tars, "decode": DECODE}


def test_a_bucket_is_read_through_a_cache_and_a_replaced_file_is_an_error(bucket, both, tmp_path):
    bucket.fill(both[1]["local"])
    options = {"shuffle": True, "decode": DECODE}
    expected = list(StreamingDataLoader(StreamingDataset(shuffle=True, **both[0], **OPTIONS)))
    for pattern, local in (("", "all"), ("/**/*.tar", "pattern")):
        assert all_same(StreamingDataLoader(bucket.stream(tmp_path / local, pattern, **options)), expected)
    names = [path.relative_to(both[1]["local"]).as_posix() for path in Path(both[1]["local"]).rglob("*.tar")]
    assert len(list((tmp_path / "all").rglob("*.parts/*-whole"))) == len(names)
    assert bucket.stream(tmp_path / "one", "/000.tar", decode=DECODE)[3]["number"] == 3
    limited = bucket.stream(tmp_path / "limited", cache_limit=400_000, **options)
    assert sum(map(len, numbers(StreamingDataLoader(limited)))) == COUNT
    assert limited.cache_usage <= 400_000
    running = bucket.stream(tmp_path / "running", decode=DECODE)
    assert running[0]["number"] == 0
    content = (Path(both[1]["local"]) / "003.tar").read_bytes()
    bucket.server.put(f"{bucket.prefix}/003.tar", content.replace(b"sample 3", b"sample 4"))
    with pytest.raises(DownloadError, match=r"(?s)003\.tar.*status 412"):
        list(running)


def test_columns_are_chosen_and_missing_members_are_none(tmp_path):
    (tmp_path / "a.tar").write_bytes(archive([("a.txt", b"A"), ("a.cls", b"1"), ("b.txt", b"B")]))
    (tmp_path / "b.tar").write_bytes(archive([("c.cls", b"3"), ("c.X.flac", b"raw")]))
    (tmp_path / "empty.tar").write_bytes(archive([]))
    rows = [
        {"__key__": "a", "cls": 1, "txt": "A", "x.flac": None},
        {"__key__": "b", "cls": None, "txt": "B", "x.flac": None},
        {"__key__": "c", "cls": 3, "txt": None, "x.flac": b"raw"},
    ]
    assert list(LocalDataset(tmp_path)) == rows
    chosen = LocalDataset(tmp_path, columns=["cls", "__url__"], decode="bytes")
    assert list(chosen) == [
        {"cls": b"1", "__url__": "a.tar"},
        {"cls": None, "__url__": "a.tar"},
        {"cls": b"3", "__url__": "b.tar"},
    ]
    with pytest.raises(ConfigurationError, match=r"'jpg': expected columns of .*: __key__, __url__, cls, txt, x\.flac"):
        LocalDataset(tmp_path, columns=["jpg"])
    with pytest.raises(ConfigurationError, match="decode = 'jpg': expected extensions in"):
        LocalDataset(tmp_path, decode={"jpg": "bytes"})
    with pytest.raises(TypeError, match="column 'cls' has nulls"):
        list(StreamingDataLoader(StreamingDataset(local=str(tmp_path), columns=["cls"], batch_size=3)))
    streams = [Stream(local=str(tmp_path), decode={"cls": "text"}), Stream(local=str(tmp_path), columns=["cls"])]
    dataset = StreamingDataset(streams=streams, **OPTIONS)
    assert (dataset[0]["cls"], dataset[3]["cls"]) == ("1", 1)


def test_images_are_those_of_pillow_and_pickles_are_refused(tmp_path, both):
    file, state = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(file, "PNG")
    torch.save(torch.arange(3), state)
    (tmp_path / "a.tar").write_bytes(
        archive([("a.png", file.getvalue()), ("a.pkl", pickle.dumps({1})), ("a.pth", state.getvalue())])
    )
    with pytest.raises(ConfigurationError, match=r"allow_unsafe_types.*column 'pkl' of a\.tar holds pickles"):
        LocalDataset(tmp_path)
    assert LocalDataset(tmp_path, columns=["png"])[0]["png"].getpixel((1, 1)) == (255, 0, 0)
    assert LocalDataset(tmp_path, decode="bytes")[0]["png"] == file.getvalue()
    found = LocalDataset(tmp_path, allow_unsafe_types=True)[0]
    assert found["pkl"] == {1}
    assert found["pth"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigurationError, match=r"decode = .*bytes.*is mds, and no tar file"):
        LocalDataset(**both[0], decode="bytes")


def test_what_is_no_dataset_is_an_error_that_names_file_and_location(tmp_path):
    content = archive([("a.npy", b"no array"), ("b.npy", b"")])
    (tmp_path / "a.tar").write_bytes(content)
    dataset = LocalDataset(tmp_path)
    with pytest.raises(ShardCorruptError, match=r"a\.tar.*row 1, member 'b\.npy' at byte 1,536: ValueError"):
        dataset[1]
    (tmp_path / "b.tar").write_bytes(content[:1024])
    with pytest.raises(ShardCorruptError, match=rf"{tmp_path}/b\.tar.*torn: the file ends at byte 1,024"):
        LocalDataset(tmp_path)
    (tmp_path / "b.tar").unlink()
    # The index was made, and a file of the same size replaces the one that it describes.
    in_place = LocalDataset(tmp_path)
    (tmp_path / "a.tar").write_bytes(archive([("a.npy", b"")])[: len(content)].ljust(len(content), b"\0"))
    with pytest.raises(ShardCorruptError, match="written again"):
        in_place[0]
    (tmp_path / "a.tar").write_bytes(archive([("a.cls", b"1")]))
    in_place = LocalDataset(tmp_path)
    (tmp_path / "a.tar").write_bytes(archive([("a.cls", b"2")]))
    with pytest.raises(ShardCorruptError, match="written again"):
        in_place[0]
    assert len(LocalDataset(f"{tmp_path}/*.tar")) == 1
    with pytest.raises(ShardNotFoundError, match="no file matches"):
        LocalDataset(f"{tmp_path}/z*.tar")


COMPRESSED = {".tar.gz": gzip, ".tgz": gzip, ".tar.bz2": bz2, ".tar.xz": lzma, ".tar.zst": zstandard}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_is_refused_and_no_message_lists_its_suffix(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSED[suffix].compress(archive([("a.cls", b"1")])))
    for location in (tmp_path, path, f"{tmp_path}/*{suffix}"):
        with pytest.raises(ConfigurationError, match=r"a tar file without compression.*decompress it"):
            StreamingDataset(local=str(location), batch_size=1)
    path.unlink()
    for location in (tmp_path, path):
        with pytest.raises(ShardNotFoundError) as caught:
            StreamingDataset(local=str(location), batch_size=1)
        assert ".tar" in str(caught.value)
        assert suffix not in str(caught.value).replace(str(path), "")


def test_a_file_that_is_removed_before_its_headers_are_read_is_named(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path, range(3))
    entries = StreamingDataset(local=str(tmp_path), batch_size=1).shards
    reader = open_shard(tmp_path, entries[0])
    path.unlink()
    with pytest.raises(ShardNotFoundError, match=r"a\.tar"):
        reader.sample(0)
