"""Files of tokens as other programs write them: what windows and documents hold, and what is refused."""

import bz2
import gzip
import lzma
import os
import pickle
import re
import struct
from itertools import pairwise
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from token_writers import MEGATRON_CODES, bare, datatrove, fairseq, llm_c, megatron, numpys
from torch.utils.data import ConcatDataset, Subset

from fkat_data import ConfigurationError, DataLoader, ShardCorruptError, ShardNotFoundError, StateMismatchError
from fkat_data.datasets import PackedDataset, TokenDocuments, TokenWindows, collate_packed
from fkat_data.errors import ShardError
from fkat_data.streaming import LocalDataset

GOLDEN = Path(__file__).parents[1] / "golden" / "tokens"


INDEXED = [datatrove, megatron, fairseq]
ALL = [bare, numpys, llm_c, *INDEXED]


def written(write, path, lengths=(7, 1, 20, 0, 12), **options):
    tokens = np.arange(sum(lengths), dtype=np.uint16) * 3
    return str(write(path, tokens, list(lengths), **options)), tokens.astype(np.int64)


def dtype_for(write):
    return "uint16" if write is bare else None


@pytest.mark.parametrize("write", ALL)
def test_windows_are_the_tokens_of_a_file_cut_up(write, tmp_path):
    path, tokens = written(write, tmp_path / "a")
    windows = TokenWindows(path, 9, dtype=dtype_for(write))
    assert len(windows) == 4
    assert all(window.dtype == torch.int64 for window in windows)
    assert torch.cat(list(windows)).tolist() == tokens[:36].tolist()
    assert windows[-1].tolist() == tokens[27:36].tolist()
    assert windows.num_tokens == 40
    assert torch.equal(pickle.loads(pickle.dumps(windows))[2], windows[2])


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    window_size=st.integers(1, 12),
    stride=st.integers(1, 15),
)
def test_windows_step_by_their_stride_and_stay_in_their_file(tmp_path_factory, sizes, window_size, stride):
    folder = tmp_path_factory.mktemp("tokens")
    paths, expected = [], []
    for number, size in enumerate(sizes):
        tokens = np.arange(size, dtype=np.uint16) + 100 * number
        paths.append(str(bare(folder / str(number), tokens, [])))
        starts = range(0, size - window_size + 1, stride)
        expected += [tokens[start : start + window_size].tolist() for start in starts]
    windows = TokenWindows(paths, window_size, stride=stride, dtype="uint16")
    assert len(windows) == len(expected)
    assert [window.tolist() for window in windows.__getitems__(range(len(windows)))] == expected


@given(data=st.data(), lengths=st.lists(st.integers(0, 9), min_size=1, max_size=20), write=st.sampled_from(INDEXED))
def test_documents_and_their_boundaries_are_those_that_were_written(tmp_path_factory, data, lengths, write):
    path = tmp_path_factory.mktemp("tokens") / "a"
    options = {}
    if write is megatron:
        counts = st.lists(st.integers(1, 3), min_size=len(lengths), max_size=len(lengths))
        options["sequences"] = data.draw(counts, label="sequences")
    path, tokens = written(write, path, lengths, **options)
    documents = TokenDocuments(path)
    edges = np.cumsum([0, *lengths])
    assert documents.lengths.tolist() == lengths
    assert [documents.sort_key(index) for index in range(len(lengths))] == lengths
    assert [each.tolist() for each in documents] == [tokens[a:b].tolist() for a, b in pairwise(edges)]
    if not len(tokens):
        return
    size = data.draw(st.integers(1, len(tokens)), label="window_size")
    stride = data.draw(st.integers(1, size), label="stride")
    for index, item in enumerate(TokenWindows(path, size, stride=stride, boundaries=True)):
        own = slice(index * stride, index * stride + size)
        document_of = np.repeat(np.arange(len(lengths)), lengths)[own]
        begins = np.flatnonzero(np.diff(document_of, prepend=-1))
        assert item["tokens"].tolist() == tokens[own].tolist()
        assert item["cu_seqlens"].tolist() == [*begins, size]
        assert item["document_ids"].tolist() == (np.unique(document_of, return_inverse=True)[1]).tolist()
        assert item["position_ids"].tolist() == [n - max(b for b in begins if b <= n) for n in range(size)]


def test_boundaries_may_come_from_the_token_that_ends_a_document(tmp_path):
    tokens = np.array([5, 5, 0, 6, 0, 0, 7, 7], np.uint16)
    path = str(bare(tmp_path / "a", tokens, []))
    (item,) = TokenWindows(path, 8, dtype="uint16", boundaries=True, end_of_document=0)
    assert item["cu_seqlens"].tolist() == [0, 3, 5, 6, 8]
    assert item["cu_seqlens"].dtype == item["document_ids"].dtype == torch.int32
    assert item["document_ids"].tolist() == [0, 0, 0, 1, 1, 2, 3, 3]
    assert item["position_ids"].tolist() == [0, 1, 2, 0, 1, 0, 0, 1]
    batch = collate_packed([item, item])
    assert batch["cu_seqlens"].tolist() == [0, 3, 5, 6, 8, 11, 13, 14, 16]
    assert batch["max_seqlen"] == 3


@pytest.mark.parametrize("dtype", MEGATRON_CODES)
def test_every_type_of_a_megatron_index_is_read(dtype, tmp_path):
    path = str(megatron(tmp_path / "a", np.array([1, 2, 100, 3]), [3, 1], dtype=dtype))
    assert TokenWindows(path, 4)[0].tolist() == [1, 2, 100, 3]
    assert TokenDocuments(path)[1].tolist() == [3]
    # The second layout of llm.c has larger tokens.
    assert TokenWindows(llm_c(tmp_path / "b", np.array([70_000, 1]), []), 2)[0].tolist() == [70_000, 1]


def test_a_pair_written_by_megatron_is_read_as_megatron_reads_it():
    path = str(GOLDEN / "megatron.bin")
    documents = TokenDocuments(path)
    expected = np.load(GOLDEN / "megatron_documents.npz")
    assert [each.tolist() for each in documents] == [expected[str(n)].tolist() for n in range(len(expected))]
    assert isinstance(documents.lengths, np.memmap)
    windows = TokenWindows(path, 64)
    joined = np.concatenate([expected[str(n)] for n in range(len(expected))])
    assert torch.cat(list(windows)).tolist() == joined[: 64 * len(windows)].tolist()


def test_files_may_be_in_any_store(tmp_path):
    for write in (*INDEXED, numpys):
        path, tokens = written(write, tmp_path / write.__name__)
        for file in tmp_path.glob(f"{write.__name__}.*"):
            with fsspec.open(f"memory://tokens/{file.name}", "wb") as copy:
                copy.write(file.read_bytes())
        remote = f"memory://tokens/{Path(path).name}"
        assert TokenWindows(remote, 40)[0].tolist() == tokens.tolist()
        if write in INDEXED:
            assert TokenDocuments(remote).lengths.tolist() == [7, 1, 20, 0, 12]
    with pytest.raises(ShardNotFoundError, match=r"'memory://host/none\.bin': no such file$"):
        TokenWindows("memory://user:secret@host/none.bin?key=secret", 4)


def age(folder):
    """Make files old: clocks of file systems are coarse, and would not tell two writes of a test apart."""
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))


def damaged(path, suffix, change):
    file = Path(path).with_suffix(suffix) if not suffix.startswith("+") else Path(path + suffix[1:])
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize(
    ("write", "suffix", "change", "expected"),
    [
        (megatron, ".bin", lambda old: old[:-2], "size is 78: expected 80 bytes"),
        (megatron, ".bin", lambda old: old + b"ab", "size is 82: expected 80 bytes"),
        (megatron, ".idx", lambda old: old[:20], "size is 20: expected at least 34"),
        (megatron, ".idx", lambda old: old[:-3], "expected 142 bytes for 5 sequences"),
        (megatron, ".idx", lambda old: b"X" + old[1:], "first bytes"),
        (megatron, ".idx", lambda old: old[:9] + b"\2" + old[10:], "version is 2: expected 1"),
        (megatron, ".idx", lambda old: old[:17] + b"\11" + old[18:], "code of the type is 9"),
        (llm_c, ".bin", lambda old: old[:-2], "size is 1102: expected 1104"),
        (llm_c, ".bin", lambda old: old[:4] + b"\5" + old[5:], "version of llm.c's header 20240520 is 5"),
        (numpys, ".npy", lambda old: old[:-2], "expected 208 bytes for 40 tokens"),
        (numpys, ".npy", lambda old: old[:20], "NumPy header"),
        (numpys, ".npy", lambda old: b"", "first bytes"),
        (datatrove, ".ds", lambda old: old[:-4], "2 or 4 bytes for each of the 40 tokens"),
        (datatrove, "+.index", lambda old: old[:-1], "size is 39: expected a multiple of 8"),
    ],
)
def test_a_file_that_contradicts_its_header_or_index_is_refused_by_name(write, suffix, change, expected, tmp_path):
    path, _ = written(write, tmp_path / "a")
    damaged(path, suffix, change)
    with pytest.raises(ShardCorruptError, match=expected) as found:
        TokenWindows(path, 4, dtype="uint16")
    assert str(tmp_path / "a") in str(found.value)


def test_a_document_outside_its_file_is_an_error_where_it_is_read(tmp_path):
    path, _ = written(megatron, tmp_path / "a")
    damaged(path, ".idx", lambda old: old[: 34 + 5 * 4 + 8] + struct.pack("<q", 1000) + old[34 + 5 * 4 + 16 :])
    with pytest.raises(ShardCorruptError, match=r"a\.idx.*pointer of sequence 1 is 1000: expected byte 14, where"):
        TokenDocuments(path)
    path, _ = written(datatrove, tmp_path / "b")
    damaged(path, "+.index", lambda old: struct.pack("<Q", 39) + old[8:])
    documents = TokenDocuments(path)
    with pytest.raises(ShardCorruptError, match=r"start of document 2 is 8: expected at least 39"):
        documents[1]
    with pytest.raises(ShardCorruptError, match="length of document 1"):
        _ = documents.lengths


def test_wrong_arguments_name_what_they_should_be(tmp_path):
    raw, typed, pair = (written(write, tmp_path / write.__name__)[0] for write in (bare, numpys, megatron))
    (tmp_path / "odd.bin").write_bytes(b"abc")
    np.save(tmp_path / "square.npy", np.zeros((2, 2), int))
    (tmp_path / "questions.bin").write_bytes(np.int32([20240522, *[0] * 255]).tobytes())
    for path, options, error, text in (
        (raw, {}, ConfigurationError, r"dtype = None: expected the type of the tokens in .*bare\.bin"),
        (raw, {"dtype": "float32"}, ConfigurationError, "dtype = 'float32'"),
        ("odd.bin", {"dtype": "int64"}, ShardCorruptError, "a multiple of 8 bytes"),
        (raw, {"dtype": "uint8", "end_of_document": 1}, ConfigurationError, "end_of_document"),
        (raw, {"dtype": "uint8", "boundaries": True}, ConfigurationError, r"bare\.bin.*whose index says where doc"),
        ("none.bin", {}, ShardNotFoundError, r"none\.bin"),
        (typed, {"dtype": "int64"}, ConfigurationError, r"dtype = 'int64': expected <u2, which .*numpys\.npy says"),
        ("square.npy", {}, ConfigurationError, "one dimension"),
        (pair.replace(".bin", ".idx"), {}, ConfigurationError, r"is an index, and its tokens are in .*megatron\.bin"),
        ("questions.bin", {}, ConfigurationError, "questions of an evaluation"),
    ):
        with pytest.raises(error, match=text):
            TokenWindows(str(tmp_path / path), **{"window_size": 4} | options)
    with pytest.raises(ConfigurationError, match="whose index says where documents are"):
        TokenDocuments(raw, dtype="uint8")
    with pytest.raises(ConfigurationError, match="uris"):
        TokenWindows([], 4)


def readings(path, dtype=None):
    """Reads the first tokens of a file, each way."""
    yield lambda: TokenWindows(path, 4, dtype=dtype)[0]
    tokens = {"window_size": 4, "dtype": dtype}
    yield lambda: torch.from_numpy(LocalDataset(path, tokens=tokens)[0]["tokens"])


def test_what_is_no_file_of_bare_tokens_is_refused_by_name(tmp_path):
    tokens = np.arange(600, dtype=np.uint16).tobytes()
    np.savez(tmp_path / "a.npz", np.arange(600, dtype=np.uint16))
    torch.save({"weight": torch.zeros(3)}, tmp_path / "model.bin")
    (tmp_path / "tokens.ds.index").write_bytes(bytes(80))
    compressed = {"gz": gzip.compress(tokens), "zst": zstandard.compress(tokens), "xz": lzma.compress(tokens)}
    for suffix, content in (compressed | {"bz2": bz2.compress(tokens)}).items():
        (tmp_path / f"a.bin.{suffix}").write_bytes(content)
        (tmp_path / f"misnamed_{suffix}.bin").write_bytes(content)
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == 11
    for name in names:
        for read in readings(str(tmp_path / name), "uint16"):
            # A stream has no files of the other names.
            with pytest.raises((ConfigurationError, ShardError), match=re.escape(name)):
                read()
        with pytest.raises(ConfigurationError, match="without compression"):
            TokenWindows(str(tmp_path / name), 4, dtype="uint16")


@pytest.mark.parametrize("first", [[0x8B1F, 8], [0xFFFF] * 4, [0xD8FF], [0x0178], [0x5D, 0], [0x9D1F]])
def test_bare_tokens_may_begin_as_other_files_do(first, tmp_path):
    tokens = np.array([*first, *range(600)], np.uint16)
    path = str(bare(tmp_path / "a", tokens, []))
    for read in readings(path, "uint16"):
        assert read().tolist() == tokens[:4].tolist()


def test_a_file_of_numpys_name_without_a_header_has_the_type_that_is_given(tmp_path):
    tokens = np.arange(40, dtype=np.uint16)
    tokens.tofile(tmp_path / "a.npy")
    for read in readings(str(tmp_path / "a.npy"), "uint16"):
        assert read().tolist() == [0, 1, 2, 3]
    for read in readings(str(tmp_path / "a.npy")):
        with pytest.raises(ConfigurationError, match=r"dtype.*a\.npy"):
            read()
    np.save(tmp_path / "a.npy", tokens)
    damaged(tmp_path / "a.npy", ".npy", lambda old: b"X" + old[1:])
    for read in readings(str(tmp_path / "a.npy"), "uint16"):
        with pytest.raises(ShardCorruptError, match="first bytes"):
            read()


def test_fields_of_an_index_that_say_the_same_thing_are_compared(tmp_path):
    path, _ = written(megatron, tmp_path / "gaps", (10, 10, 10))
    lengths, ends = 34, 34 + 3 * 4 + 3 * 8
    tokens = np.arange(60, dtype=np.uint16)
    tokens.tofile(path)
    pointers = struct.pack("<3q", 0, 60, 100)  # 20 tokens between the first and the second document
    damaged(path, ".idx", lambda old: old[: lengths + 12] + pointers + old[ends:])
    for read in (*readings(path), lambda: TokenDocuments(path)):
        with pytest.raises(ShardCorruptError, match=r"gaps\.idx.*sequence 1 is 60: expected byte 20.*with gaps"):
            read()
    path, _ = written(megatron, tmp_path / "open", (10, 10, 10))
    damaged(path, ".idx", lambda old: old[:26] + struct.pack("<Q", 3) + old[34:-8])  # two documents of three sequences
    with pytest.raises(ShardCorruptError, match=r"open\.idx.*end of documents is \(0, 2\): expected \(0, 3\)"):
        TokenDocuments(path)[0]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("lengths", [[3, 1], [], [0, 4]])
def test_every_type_of_a_fairseq_index_is_read(dtype, lengths, tmp_path):
    path = str(fairseq(tmp_path / "a", np.array([1, 2, 100, 3])[: sum(lengths)], lengths, dtype=dtype))
    documents = TokenDocuments(path)
    assert [len(document) for document in documents] == documents.lengths.tolist() == lengths
    if lengths:
        for read in readings(path):
            assert read().tolist() == [1, 2, 100, 3]
        assert TokenWindows(path, 4, boundaries=True)[0]["cu_seqlens"].tolist() == sorted({0, lengths[0], 4})


def test_an_index_that_does_not_say_what_tokens_are_is_refused_with_what_would_do(tmp_path):
    """fairseq's implementations lazy and cached add 1 to each token, and those of the first Megatron-LM do not."""
    np.arange(10, dtype=np.int32).tofile(tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(
        b"TNTIDX\0\0" + struct.pack("<5Q", 1, 4, 4, 1, 1) + struct.pack("<5q", 0, 1, 0, 10, 10)
    )
    path = str(tmp_path / "a.bin")
    for read in (*readings(path), *readings(path, "int32"), lambda: TokenDocuments(path)):
        with pytest.raises(ConfigurationError, match=r"a\.idx.*--dataset-impl mmap.*TNTIDX.*again with mmap"):
            read()


NUM_SEQUENCES = 600_000


@pytest.mark.parametrize("sequences", [1, 3])
def test_tokens_of_a_large_index_are_compared_with_it_where_they_are_read(tmp_path, sequences):
    path = str(tmp_path / "a.bin")
    (np.arange(NUM_SEQUENCES) % 251).astype(np.uint8).tofile(path)
    ends = np.arange(0, NUM_SEQUENCES + 1, sequences)
    arrays = np.ones(NUM_SEQUENCES, "<i4"), np.arange(NUM_SEQUENCES), ends
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, MEGATRON_CODES["uint8"], NUM_SEQUENCES, len(ends))
    (tmp_path / "a.idx").write_bytes(header + b"".join(array.tobytes() for array in arrays))
    whole = TokenWindows(path, 10)
    chosen = [0, 26_214, 26_215, 52_428, 59_999]
    assert [int(window[0]) for window in whole.__getitems__(chosen)] == [10 * index % 251 for index in chosen]
    assert TokenWindows(path, NUM_SEQUENCES)[0].tolist() == (np.arange(NUM_SEQUENCES) % 251).tolist()
    assert len(LocalDataset(path, tokens={"window_size": 10})) == len(whole)
    damaged_at = 300_001
    first = 34 + 4 * NUM_SEQUENCES
    content = bytearray(Path(path).with_suffix(".idx").read_bytes())
    pointers = np.frombuffer(content, "<i8", NUM_SEQUENCES, first)
    pointers[damaged_at:] += 5  # a gap of five tokens
    Path(path).with_suffix(".idx").write_bytes(content)
    with Path(path).open("ab") as file:
        file.write(bytes(5))
    message = rf"a\.idx.*pointer of sequence {damaged_at} is 300006: expected byte {damaged_at}.*with gaps"
    windows, documents = TokenWindows(path, 10), TokenDocuments(path)
    assert windows[0].tolist() == documents[0].tolist() + list(range(sequences, 10))
    for read in (
        lambda: windows[30_000],
        lambda: windows.stack_into([30_000], np.zeros((1, 10), np.int64)),
        lambda: windows.__getitems__([0, 30_001]),
        lambda: TokenWindows(path, NUM_SEQUENCES)[0],
        lambda: TokenWindows(path, 10, boundaries=True)[30_000],
        lambda: documents[damaged_at // sequences],
        lambda: LocalDataset(path, tokens={"window_size": 10}),
    ):
        with pytest.raises(ShardCorruptError, match=message):
            read()


def test_a_token_outside_the_vocabulary_is_named_where_it_is_read(tmp_path):
    path, _ = written(numpys, tmp_path / "a")
    windows = TokenWindows(path, 10, vocab_size=100)
    assert windows[2].max() == 87
    with pytest.raises(ShardCorruptError, match=r"a\.npy.*token 34 is 102: expected from 0 to 99"):
        windows[3]
    path = str(megatron(tmp_path / "b", np.array([1.0, 2.5]), [2], dtype="float32"))
    with pytest.raises(ShardCorruptError, match=r"token 1 is 2\.5: expected a whole number"):
        TokenWindows(path, 2)[0]
    np.save(tmp_path / "c.npy", np.array([1, 1 << 63], np.uint64))
    with pytest.raises(ShardCorruptError, match="9223372036854775808: expected a whole number"):
        TokenWindows(str(tmp_path / "c.npy"), 2)[0]


def state_within(dataset, **options):
    """The state of a loader after its first batch."""
    loader = DataLoader(dataset, seed=1, **options)
    next(iter(loader))
    return loader.state_dict()


def test_a_file_that_is_written_again_is_an_error_at_once_and_at_a_resume(tmp_path):
    path, tokens = written(numpys, tmp_path / "a")
    age(tmp_path)
    windows = TokenWindows(path, 4)
    state = state_within(windows, batch_size=2)
    np.save(path, (tokens + 1).astype(np.uint16))
    with pytest.raises(ShardCorruptError, match=r"a\.npy.*has changed"):
        windows[0]
    again = DataLoader(TokenWindows(path, 4), batch_size=2, seed=1)
    with pytest.raises(StateMismatchError, match=r"a\.npy"):
        again.load_state_dict(state)


def test_another_index_is_an_error_at_once_and_at_a_resume(tmp_path):
    for write in INDEXED:
        path, _ = written(write, tmp_path / write.__name__, (7, 1, 20))
        age(tmp_path)
        state = state_within(TokenDocuments(path), batch_size=None)
        documents = TokenDocuments(path)
        assert len(documents[0]) == 7  # the index is mapped from now on
        written(write, tmp_path / write.__name__, (8, 1, 19))  # the same tokens, cut elsewhere
        with pytest.raises(ShardCorruptError, match=rf"{write.__name__}\.(idx|ds\.index).*has changed"):
            documents[0]
        with pytest.raises(StateMismatchError, match=write.__name__):
            DataLoader(TokenDocuments(path), batch_size=None, seed=1).load_state_dict(state)


@pytest.mark.parametrize(
    "view",
    [
        lambda windows: ConcatDataset([["no file"], Subset(windows, range(2))]),
        lambda windows: PackedDataset(windows, sequence_length=20, lengths=[12] * 3, seed=1),
        lambda windows: LocalDataset(Path(windows.paths[0]).parent, tokens={"window_size": windows.window_size}),
    ],
)
def test_windows_of_another_size_are_refused_at_a_resume_where_they_are_as_many(tmp_path, view):
    path, _ = written(numpys, tmp_path / "a")
    state = state_within(view(TokenWindows(path, 12)), batch_size=1, collate_fn=list)
    with pytest.raises(StateMismatchError, match=r"a\.npy"):
        DataLoader(view(TokenWindows(path, 13)), batch_size=1, seed=1).load_state_dict(state)


def test_a_large_file_is_not_read_before_it_is_needed(tmp_path):
    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        file.truncate(2 * 10**10)  # a file with a hole takes no room
        file.seek(2 * 10**10 - 20)
        file.write(np.arange(10, dtype=np.uint16).tobytes())
    windows = TokenWindows(path, 10, dtype="uint16")
    assert len(windows) == 10**9
    assert windows[-1].tolist() == [*range(10)]
    assert len(windows.file_digests()) == 1


class ReversedWindows(TokenWindows):
    def __getitems__(self, indices):
        return [window.flip(0) for window in super().__getitems__(indices)]


class ReversedItems(TokenWindows):
    def __getitem__(self, index):
        return super().__getitem__(index).flip(0)


@pytest.mark.parametrize("kind", [ReversedWindows, ReversedItems])
def test_what_a_subclass_makes_of_its_items_is_in_items_and_in_batches(tmp_path, kind):
    path, tokens = written(numpys, tmp_path / "a")
    windows = kind(path, 9)
    expected = tokens[:36].reshape(4, 9)[:, ::-1].tolist()
    assert [each.tolist() for each in (*windows, *windows.__getitems__(range(4)))] == expected * 2
    assert next(iter(DataLoader(windows, batch_size=4))).tolist() == expected


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [TokenWindows, ReversedWindows])
@pytest.mark.parametrize("write", [bare, numpys])
def test_microbatches_that_windows_are_read_into_are_those_of_a_collate_function(tmp_path, num_workers, kind, write):
    rng = np.random.default_rng(0)
    files = []
    for number, size in enumerate((900, 20_000, 4000)):  # microbatches within a file and across files
        files.append(str(write(tmp_path / str(number), rng.integers(0, 50_000, size).astype(np.uint16), [size])))
    windows = kind(files, 65, stride=64, dtype=dtype_for(write))
    options = {"batch_size": 40, "shuffle": True, "seed": 3}  # larger than what a pipe takes inline
    expected = list(DataLoader(windows, **options, collate_fn=torch.stack))
    with DataLoader(windows, **options, num_workers=num_workers) as loader:
        iterator = iter(loader)
        before = torch.get_rng_state()
        found = [next(iterator) for _ in range(4)]
        assert torch.equal(torch.get_rng_state(), before)
        state = loader.state_dict()
        found += iterator
    with DataLoader(windows, **options, num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        resumed = list(loader)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, resumed, expected[4:]))
    assert all(batch.is_contiguous() and batch.dtype == torch.int64 for batch in found)
    found[0].zero_()  # is the caller's own
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_a_microbatch_that_windows_are_read_into_names_file_and_token(processes, tmp_path, num_workers):
    tokens = np.zeros(5000, np.uint16)
    tokens[3333] = 77
    path = str(bare(tmp_path / "a", tokens, [5000]))
    with (
        DataLoader(TokenWindows(path, 100, dtype="uint16", vocab_size=50), 10, num_workers=num_workers) as loader,
        pytest.raises(ShardCorruptError, match="token 3333") as caught,
    ):
        for number, _ in enumerate(loader):  # noqa: B007 - used behind the loop
            pass
    assert number == 2
    assert any("Sample" in note or "microbatch 3" in note for note in caught.value.__notes__)


def test_a_collate_function_that_users_register_makes_microbatches_of_windows_too(tmp_path, monkeypatch):
    path = str(bare(tmp_path / "a", np.arange(500, dtype=np.uint16), [500]))
    functions = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(functions, torch.Tensor, lambda batch, *, collate_fn_map=None: ("mine", len(batch)))
    assert next(iter(DataLoader(TokenWindows(path, 50, dtype="uint16"), 4))) == ("mine", 4)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_numpy_files_of_each_version_are_read_and_those_of_later_ones_are_no_damage(tmp_path, version):
    path = tmp_path / "tokens.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.arange(20, dtype=np.uint16), version=version)
    read = {
        "windows": lambda: TokenWindows(path, 10)[1],
        "stream": lambda: LocalDataset(path, tokens={"window_size": 10})[1]["tokens"],
    }
    assert [found().tolist() for found in read.values()] == [[*range(10, 20)]] * 2
    content = path.read_bytes()
    path.write_bytes(content[:6] + b"\x04" + content[7:])
    for found in read.values():
        with pytest.raises(ConfigurationError, match=r"tokens\.npy.*its version is 4\.0"):
            found()
