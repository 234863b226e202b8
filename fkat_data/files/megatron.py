"""Indices of Megatron-LM and of fairseq, which it has the format from: the sequences of a file of tokens beside them.

Sources: ``megatron/core/datasets/indexed_dataset.py`` of Megatron-LM, ``fairseq/data/indexed_dataset.py`` of fairseq.
"""

import struct
from bisect import bisect_right
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files.opening import shown_path
from fkat_data.files.token_layout import Documents, Layout, TokenBytes, checked_lengths, whole_items

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
#: By the codes of version 1.
_DTYPES = {
    code: np.dtype(name) for code, name in enumerate(("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), start=1)
}
#: fairseq's header has no number of documents: each sequence is one. Its codes of floats have changed.
_FAIRSEQ_HEADER = struct.Struct("<9sQBQ")
_FAIRSEQ_DTYPES = {**{code: _DTYPES[code] for code in (1, 2, 3, 4, 5, 8)}, 9: np.dtype("<u4"), 10: np.dtype("<u8")}
#: What the implementations "lazy" and "cached" of both write; some have added 1 to each token.
_TORCHNET = b"TNTIDX\x00\x00"
#: Sequences that are compared at once: all of an index of as many when it is opened; of a larger one, where they are read.
BLOCK_SEQUENCES = 1 << 18
#: As many blocks are compared at once where all are.
_BLOCKS_AT_ONCE = 4


class IndexHeader(NamedTuple):
    """The header of an index.

    Attributes:
        dtype: The type of the tokens.
        num_sequences: How many sequences there are.
        num_ends: How many ends of documents are stored; None: each sequence is a document.
        first_byte: Where the lengths begin; pointers and ends of documents follow.
    """

    dtype: np.dtype[Any]
    num_sequences: int
    num_ends: int | None
    first_byte: int

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return self.num_sequences if self.num_ends is None else self.num_ends - 1


def header_of(index_path: str, index: TokenBytes) -> IndexHeader:
    """Return what an index says of itself.

    Raises:
        ConfigurationError: It is one that does not say what the tokens are.
        ShardCorruptError: It contradicts itself.
    """
    size = _HEADER.size
    head = index.read(0, min(size, index.size_bytes))
    if head.startswith(_TORCHNET):
        expected = (
            "an index as Megatron-LM and fairseq map it (--dataset-impl mmap); this one (TNTIDX, of the implementations "
            "lazy and cached) does not say whether 1 was added to each token: write the data again with mmap"
        )
        raise ConfigurationError("uris", shown_path(index_path), expected)
    too_short = ShardCorruptError.of_field(
        index_path, "size", f"at least {size} bytes for the header", index.size_bytes
    )
    if len(head) < _FAIRSEQ_HEADER.size:
        raise too_short
    magic, version, code, num_sequences = _FAIRSEQ_HEADER.unpack_from(head)
    if magic != MAGIC:
        raise ShardCorruptError.of_field(index_path, "first bytes", repr(MAGIC), magic)
    if version != 1:
        raise ShardCorruptError.of_field(index_path, "version", "1", version)
    is_of_fairseq = index.size_bytes == _size_of_fairseq(head)
    dtypes = _FAIRSEQ_DTYPES if is_of_fairseq else _DTYPES
    if code not in dtypes:
        raise ShardCorruptError.of_field(index_path, "code of the type", f"one of {[*dtypes]}", code)
    if is_of_fairseq:
        return IndexHeader(dtypes[code], num_sequences, None, _FAIRSEQ_HEADER.size)
    if len(head) < size:
        raise too_short
    *_, num_ends = _HEADER.unpack(head)
    expected = size + 12 * num_sequences + 8 * num_ends
    # Mode bytes follow in an index of several kinds of data.
    if index.size_bytes not in (expected, expected + num_sequences):
        what = f"{expected} bytes for {num_sequences} sequences and {num_ends} ends of documents"
        raise ShardCorruptError.of_field(index_path, "size", what, index.size_bytes)
    if num_ends < 1:
        raise ShardCorruptError.of_field(index_path, "number of ends of documents", "at least 1", num_ends)
    return IndexHeader(dtypes[code], num_sequences, num_ends, size)


def _size_of_fairseq(head: bytes) -> int:
    return _FAIRSEQ_HEADER.size + 12 * _FAIRSEQ_HEADER.unpack_from(head)[-1]


def megatron_end(index_path: str, index: TokenBytes, *, compares_all: bool = False) -> tuple[str, int]:
    """Return the type of the tokens, and the bytes of the file that an index is of.

    Args:
        index_path: The index.
        index: What reads it.
        compares_all: Whether to compare all sequences of a large index, too.

    Raises:
        ConfigurationError: The index is of a kind that is not read.
        ShardCorruptError: It contradicts itself.
    """
    sequences = Sequences(index_path, index)
    if compares_all or sequences.header.num_sequences <= BLOCK_SEQUENCES:
        sequences.compare_all()
    return sequences.header.dtype.str, sequences.end()


class Sequences:
    """The sequences of an index, whose lengths and offsets are compared where their tokens are read. Threads may share it.

    Args:
        index_path: The index.
        index: What reads it.

    Raises:
        ConfigurationError: The index is of a kind that is not read.
        ShardCorruptError: It contradicts itself.

    Attributes:
        header: What it says of itself.
    """

    def __init__(self, index_path: str, index: TokenBytes) -> None:
        self.header: IndexHeader = header_of(index_path, index)
        self._path = index_path
        self._index = index
        self._blocks = range(-(-self.header.num_sequences // BLOCK_SEQUENCES))
        self._firsts: dict[int, int] = {}
        self._compared: set[int] = set()

    def end(self) -> int:
        """Return where the last sequence ends, in bytes."""
        num = self.header.num_sequences
        if not num:
            return 0
        lengths, pointers = self._read(num - 1, num)
        return int(pointers[0]) + int(lengths[0]) * self.header.dtype.itemsize

    def compare(self, start: int, stop: int) -> None:
        """Compare all that say where the tokens of a range of bytes are.

        Raises:
            ShardCorruptError: A sequence does not begin where the one before it ends.
        """
        while start < stop and self._blocks:
            block = max(0, bisect_right(self._blocks, start, key=self._first_byte) - 1)
            if block not in self._compared:
                self._compare(block, 1)
                self._compared.add(block)
            start = stop if block == self._blocks[-1] else self._first_byte(block + 1)

    def compare_all(self) -> None:
        """Compare all sequences; raise as ``compare``."""
        for block in self._blocks[::_BLOCKS_AT_ONCE]:
            self._compare(block, _BLOCKS_AT_ONCE)

    def _first_byte(self, block: int) -> int:
        """Return where the first sequence of a block begins."""
        found = self._firsts.get(block)
        if found is None:
            at = self.header.first_byte + 4 * self.header.num_sequences + 8 * block * BLOCK_SEQUENCES
            (found,) = struct.unpack("<q", self._index.read(at, at + 8))
            self._firsts[block] = found
        return found

    def _compare(self, block: int, num_blocks: int) -> None:
        # With the sequences before and behind it, so that blocks that were compared have no gap between them.
        first = max(0, block * BLOCK_SEQUENCES - 1)
        stop = min((block + num_blocks) * BLOCK_SEQUENCES + 1, self.header.num_sequences)
        compare_sequences(self._path, first, *self._read(first, stop), self.header.dtype.itemsize)

    def _read(self, first: int, stop: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        lengths = self.header.first_byte
        pointers = lengths + 4 * self.header.num_sequences
        return (
            np.frombuffer(self._index.read(lengths + 4 * first, lengths + 4 * stop), "<i4"),
            np.frombuffer(self._index.read(pointers + 8 * first, pointers + 8 * stop), "<i8"),
        )


def compare_sequences(
    index_path: str, first: int, lengths: npt.NDArray[np.int32], pointers: npt.NDArray[np.int64], item_bytes: int
) -> None:
    """Check that sequences begin where those before them end, as tokens are read that stand one after another.

    Args:
        index_path: The index.
        first: The number of the first of the sequences.
        lengths: Their tokens.
        pointers: Their first bytes.
        item_bytes: The bytes of a token.

    Raises:
        ShardCorruptError: One does not.
    """
    ends = pointers + lengths.astype(np.int64) * item_bytes
    begins = np.append([0] if first == 0 else pointers[:1], ends[:-1])
    if wrong := np.flatnonzero((begins[: len(pointers)] != pointers) | (lengths < 0)).tolist():
        number = first + wrong[0]
        what = f"byte {begins[wrong[0]]}, where the one before it ends; an index with gaps is not read"
        raise ShardCorruptError.of_field(index_path, f"pointer of sequence {number}", what, int(pointers[wrong[0]]))


def megatron_layout(path: str, size_bytes: int, index_path: str, dtype: str, end: int) -> Layout:
    """Return the layout of a file that Megatron's index is of.

    Raises:
        ShardCorruptError: It does not end where the index says.
    """
    if end != size_bytes:
        raise ShardCorruptError.of_field(path, "size", f"{end} bytes, where {index_path} ends", size_bytes)
    return Layout(dtype, 0, whole_items(path, size_bytes, np.dtype(dtype).itemsize))


class MegatronDocuments(Documents):
    """Sequences with their lengths and offsets, and which sequences begin a document.

    Args:
        path: The file of tokens.
        num_tokens: How many it has.
        index_path: The index.
        content: Its bytes.

    Raises:
        ShardCorruptError: Sequences are of no document.
    """

    def __init__(self, path: str, num_tokens: int, index_path: str, content: npt.NDArray[np.uint8]) -> None:
        dtype, num_sequences, num_ends, first_byte = header_of(index_path, _Mapped(content))
        self._path, self._num_tokens, self._index_path = path, num_tokens, index_path
        self._item_bytes = dtype.itemsize
        sizes = [first_byte, 4 * num_sequences, 8 * num_sequences, 8 * (num_ends or 0)]
        lengths, pointers, ends = (content[first:last] for first, last in pairwise(np.cumsum(sizes).tolist()))
        self._lengths: npt.NDArray[np.int32] = lengths.view("<i4")
        self._pointers: npt.NDArray[np.int64] = pointers.view("<i8")
        self._first_sequences: npt.NDArray[np.int64] | range = (
            range(num_sequences + 1) if num_ends is None else ends.view("<i8")
        )
        self.num = len(self._first_sequences) - 1
        edges = (int(self._first_sequences[0]), int(self._first_sequences[-1]))
        if edges != (0, num_sequences):
            what = f"{(0, num_sequences)}: each of the {num_sequences} sequences is of a document"
            raise ShardCorruptError.of_field(index_path, "first and last end of documents", what, edges)

    def start_of(self, document: int) -> int:
        """Return the first token of a document; see ``Documents``."""
        sequence = int(self._first_sequences[document])
        if sequence == len(self._pointers):
            return self._num_tokens
        if not 0 <= sequence < len(self._pointers):
            what = f"from 0 to {len(self._pointers)}"
            raise ShardCorruptError.of_field(self._index_path, f"sequence of document {document}", what, sequence)
        start, rest = divmod(int(self._pointers[sequence]), self._item_bytes)
        if rest or not 0 <= start <= self._num_tokens:
            what = f"a token's offset in the {self._num_tokens} tokens of {self._path}"
            pointer = int(self._pointers[sequence])
            raise ShardCorruptError.of_field(self._index_path, f"pointer of sequence {sequence}", what, pointer)
        self._compare(sequence, sequence + 1)
        return start

    def lengths(self) -> npt.NDArray[Any]:
        """Return the tokens of each document; see ``Documents``."""
        num_sequences = len(self._pointers)
        for first in range(0, num_sequences, BLOCK_SEQUENCES) if num_sequences > BLOCK_SEQUENCES else ():
            self._compare(first, first + BLOCK_SEQUENCES)
        firsts = self._first_sequences
        if isinstance(firsts, range) or (
            self.num == num_sequences and np.array_equal(firsts, np.arange(num_sequences + 1))
        ):
            return self._lengths
        if not num_sequences:
            return np.zeros(self.num, np.int64)
        if firsts.min() < 0 or firsts.max() > num_sequences:
            what = f"from 0 to {num_sequences}"
            found = (int(firsts.min()), int(firsts.max()))
            raise ShardCorruptError.of_field(self._index_path, "sequences of documents", what, found)
        starts = np.append(self._pointers // self._item_bytes, self._num_tokens)
        return checked_lengths(self._index_path, np.diff(starts[firsts]))

    def _compare(self, first: int, stop: int) -> None:
        before = max(0, first - 1)
        found = self._lengths[before:stop], self._pointers[before:stop]
        compare_sequences(self._index_path, before, *found, self._item_bytes)


class _Mapped:
    """The bytes of an index in memory."""

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        self._content = content
        self.size_bytes = len(content)

    def read(self, start: int, stop: int) -> bytes:
        return self._content[start:stop].tobytes()
