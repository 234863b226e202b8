"""Sound files as other programs write them: each way to read gives the samples, or refuses the file by its name."""

import base64
import io
import itertools
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow.parquet import encryption

from fkat_data.datasets import IterableJsonDataset, IterableParquetDataset, JsonDataset, ParquetDataset, TarDataset
from fkat_data.errors import ConfigurationError, ShardCorruptError
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


def converted_table(path):
    return converted(path, nulls="json")


PARQUET_READERS = {
    "map-style": lambda path: list(ParquetDataset(str(path))),
    "iterable": lambda path: list(IterableParquetDataset(str(path), rows_at_once=16)),
    "stream": streamed,
    "convert": converted_table,
}


class KeysInTheFile(encryption.KmsClient):
    """Keeps keys as they are: nothing is secret here."""

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("reader", PARQUET_READERS)
@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_parquet_files_are_refused_and_not_called_corrupt(tmp_path, reader, plaintext_footer):
    settings = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["a"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(lambda _: KeysInTheFile())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    table = pa.table({"a": [1], "b": [2]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(ConfigurationError, match=r"a\.parquet.*without encryption"):
        PARQUET_READERS[reader](tmp_path / "a.parquet")


@pytest.mark.parametrize("reader", PARQUET_READERS)
def test_a_page_whose_checksum_is_wrong_is_corrupt_to_all(tmp_path, reader):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(100)}), path, write_page_checksum=True, use_dictionary=False, compression=None)
    content = path.read_bytes()
    path.write_bytes(content.replace((77).to_bytes(8, "little"), (78).to_bytes(8, "little"), 1))
    with pytest.raises(ShardCorruptError, match=r"a\.parquet"):
        PARQUET_READERS[reader](path)


@pytest.mark.parametrize("reader", ["map-style", "iterable", "stream"])
def test_a_dictionary_whose_texts_would_be_more_than_2_gib_is_read(tmp_path, reader):
    """A mebibyte, 2,100 times: only what is asked for is made."""
    large = pa.DictionaryArray.from_arrays(pa.array([1] + [0] * 2100, pa.int8()), ["x" * (1 << 20), "y"])
    pq.write_table(pa.table({"text": large}), path := tmp_path / "a.parquet", compression="zstd")
    assert path.stat().st_size < 1 << 16
    readers = {
        "map-style": lambda: ParquetDataset(str(path))[0],
        "iterable": lambda: next(iter(IterableParquetDataset(str(path), rows_at_once=1))),
        "stream": lambda: StreamingDataset(local=str(path), batch_size=1)[0],
    }
    assert readers[reader]() == {"text": "y"}


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["map-style", "iterable", "stream"])
def test_row_groups_with_more_than_2_gib_of_nested_texts_are_read(tmp_path, reader):
    """What pyarrow gives of it takes six times as much memory, so a test of every push leaves it out."""
    texts = pa.array(["x" * (1 << 20)] * 21)
    nested = pa.StructArray.from_arrays([texts, pa.ListArray.from_arrays(list(range(22)), texts)], ["text", "list"])
    table = pa.table({"nested": pa.chunked_array([nested] * 105), "row": range(21 * 105)})
    pq.write_table(table, path := tmp_path / "a.parquet", row_group_size=1 << 20, compression="zstd")
    found = {
        "map-style": lambda: ParquetDataset(str(path)),
        "iterable": lambda: IterableParquetDataset(str(path)),
        "stream": lambda: StreamingDataset(local=str(path), batch_size=1),
    }[reader]()
    rows = list(itertools.islice(found, 3)) if reader == "iterable" else [found[row] for row in (0, 1, 2)]
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert all(row["nested"] == {"text": "x" * (1 << 20), "list": ["x" * (1 << 20)]} for row in rows)
