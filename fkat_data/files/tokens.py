"""Files of tokens as other programs write them: how they are recognised, where their tokens and documents are.

What is in a file says what it is: a NumPy header, the header of llm.c, or an index beside it, ``.idx`` of Megatron-LM or
``.ds.index`` of datatrove. A file without any is bare tokens, of a type that the caller knows. Nothing is read of a file
but its first bytes and its size, and of an index its header and its end; the index itself is mapped.

Sources: ``dev/data/data_common.py`` of llm.c, ``pipeline/tokens/tokenizer.py`` of datatrove, and numpy's ``NEP 1``.
"""

import struct
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.megatron import (
    BLOCK_SEQUENCES,
    MAGIC,
    MegatronDocuments,
    Sequences,
    header_of,
    megatron_end,
    megatron_layout,
)
from fkat_data.files.opening import RangedFile, changed, local_path, shown_path
from fkat_data.files.signatures import COMPRESSED_SUFFIXES, signature_of
from fkat_data.files.token_layout import Documents, Layout, TokenBytes, checked_lengths, whole_items
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.storage.file_identity import FileIdentity

_LLM_C = struct.Struct("<3i")
_LLM_C_HEADER_BYTES = 1024
#: By magic number and version of llm.c's header.
_LLM_C_DTYPES = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
_LLM_C_EVALUATION = 20240522
_NPY, _NPY_HEADER = b"\x93NUMPY", b"{'descr':"
#: Endings of the names of compressed files, of archives, and of files with something else than bare tokens.
_NO_TOKENS = (
    *(*COMPRESSED_SUFFIXES, ".tgz", ".lz4", ".br", ".snappy", ".sz", ".zip", ".7z", ".tar", ".npz"),
    *(
        ".ds.index",
        ".ds.metadata",
        ".parquet",
        ".pq",
        ".arrow",
        ".feather",
        ".mds",
        ".jsonl",
        ".ndjson",
        ".json",
        ".csv",
    ),
    *(".tsv", ".txt", ".pt", ".pth", ".ckpt", ".safetensors", ".gguf", ".pkl", ".pickle", ".h5", ".hdf5", ".zarr"),
)
_LONGEST_NPY_HEADER_BYTES = 1 << 16
_BLOCK_BYTES = 16 << 10
#: Bare tokens may begin as other kinds of files do: with fewer bytes than these, or with padding.
_SURE_BYTES, _PADDING = 4, b"\xff"


class TokenFile(NamedTuple):
    """The facts about a file that were found when it was opened: plain values, which travel to a worker.

    Attributes:
        path: The file.
        dtype: The type of its tokens.
        first_byte: Where they begin.
        num_tokens: How many there are.
        identity: What the file was.
        index_path: The file with its documents; None: nothing says where they are.
        index_identity: What that file was.
        num_documents: How many there are; 0 without an index.
        num_sequences: How many sequences Megatron's index has whose offsets were not compared yet.
    """

    path: str
    dtype: str
    first_byte: int
    num_tokens: int
    identity: FileIdentity
    index_path: str | None = None
    index_identity: FileIdentity | None = None
    num_documents: int = 0
    num_sequences: int = 0

    def check_index(self) -> None:
        """Check that a local index is what it was: reading a map of a file that was cut off ends the process.

        Raises:
            ShardCorruptError: It was written again.
        """
        local = None if self.index_path is None else local_path(self.index_path)
        if local is not None and self.index_identity is not None:
            with suppress(FileNotFoundError):  # a map keeps what was removed
                if FileIdentity.of_path(local).is_rewritten_since(self.index_identity):
                    raise changed(local)

    def documents(self, storage_options: Mapping[str, Any]) -> Documents:
        """Open the index.

        Args:
            storage_options: Options for fsspec, for a file that is not local.

        Raises:
            ShardCorruptError: The index is no longer what it was.
            OSError: It cannot be read.
        """
        if self.index_path is None or self.index_identity is None:
            raise ValueError(f"{self.path} has no index")
        content, identity = _content(self.index_path, storage_options)
        if identity.is_rewritten_since(self.index_identity):
            raise changed(self.index_path)
        if content[: len(MAGIC)].tobytes() == MAGIC:
            return MegatronDocuments(self.path, self.num_tokens, self.index_path, content)
        return _DatatroveIndex(self, content)

    def sequences(self, storage_options: Mapping[str, Any]) -> Sequences:
        """Open the index to compare its sequences; raise as ``documents``."""
        if self.index_path is None or self.index_identity is None:
            raise ValueError(f"{self.path} has no index")
        index = RangedFile(self.index_path, storage_options)
        if index.identity().is_rewritten_since(self.index_identity):
            raise changed(self.index_path)
        return Sequences(self.index_path, index)


def token_file(path: str, dtype: object, storage_options: Mapping[str, Any]) -> TokenFile:
    """Return what a file of tokens is.

    Args:
        path: A local path, or a URI that fsspec supports.
        dtype: The type of its tokens, for a file that does not say it; None: it must.
        storage_options: Options for fsspec, for a file that is not local.

    Raises:
        ConfigurationError: The file is bare and ``dtype`` is missing, it has another type, or it is of a kind that has no
            bare tokens.
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: A header or an index contradicts itself, or does not fit the file; or it holds no tokens.
        OSError: The file cannot be read.
    """
    _check_name(path)
    file = RangedFile(path, storage_options)
    given = None if dtype is None else dtype_of(dtype)
    found = _of_megatron(path, file, storage_options) or _of_datatrove(path, file, storage_options)
    if found is None:
        found = TokenFile(path, *(layout_of(path, file) or bare_layout(path, file.size_bytes, given)), file.identity())
    check_dtype(path, given, found.dtype)
    return found


def layout_of(path: str, file: TokenBytes) -> Layout | None:
    """Return what the first bytes of a file say of it; None: they are no header.

    Raises:
        ConfigurationError: They are those of an index, or of a kind of file that has no bare tokens.
        ShardCorruptError: The header contradicts itself, or does not fit the file; or it holds no tokens.
    """
    head = file.read(0, min(file.size_bytes, _LLM_C_HEADER_BYTES))
    if head.startswith(MAGIC):
        shown = shown_path(path)
        expected = (
            f"files of tokens; this is an index, and its tokens are in {shown.removesuffix('.idx')}.bin: pass that"
        )
        raise ConfigurationError("uris", shown, expected)
    found = _of_numpy(path, file, head) or _of_llm_c(path, file, head)
    kind = None if found else signature_of(head)
    if kind is not None and (_is_gzip(head) or (len(kind.start) >= _SURE_BYTES and kind.start.strip(_PADDING))):
        remedy = kind.remedy and f": {kind.remedy}"
        raise _no_tokens(path, f"its first bytes are those of {kind.name}{remedy}")
    return found


def _check_name(path: str) -> None:
    """Check that a file's name is not one of other kinds of files, whose bytes would be taken for tokens.

    Raises:
        ConfigurationError: It is.
    """
    lowered = shown_path(path).lower()
    suffix = next((suffix for suffix in _NO_TOKENS if lowered.endswith(suffix)), None)
    if suffix is not None:
        raise _no_tokens(path, f"its name ends in {suffix}")


def _no_tokens(path: str, reason: str) -> ConfigurationError:
    expected = f"files of tokens as they are, without compression, such as .bin, .npy or .ds; {reason}"
    return ConfigurationError("uris", shown_path(path), expected)


def _is_gzip(head: bytes) -> bool:
    # The magic bytes are only three, and those of some tokens.
    if not head.startswith(b"\x1f\x8b\x08"):
        return False
    try:
        return bool(zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head))
    except genuine(zlib.error):
        return False


def digest_of(file: TokenBytes, num_blocks: int, digest: int = 0) -> int:
    """Return a CRC of a file's size and content, or of ``num_blocks`` blocks of 16 KiB that are spread over a larger one.

    Args:
        file: The file.
        num_blocks: How many.
        digest: What the CRC goes on from.
    """
    size = file.size_bytes
    starts, length = [0], size
    if size > num_blocks * _BLOCK_BYTES:
        length = _BLOCK_BYTES
        starts = cast("list[int]", np.linspace(0, size - length, num_blocks, dtype=np.int64).tolist())
    digest = zlib.crc32(b"%d" % size, digest)
    for start in starts:
        digest = zlib.crc32(file.read(start, start + length), digest)
    return digest


def check_dtype(path: str, given: "np.dtype[Any] | None", found: str) -> None:
    """Check that a file has the type of tokens that was given, if one was.

    Raises:
        ConfigurationError: It has another one.
    """
    if given is not None and np.dtype(found) != given:
        raise ConfigurationError("dtype", str(given), f"{found}, which {shown_path(path)} says, or None")


def dtype_of(dtype: object) -> "np.dtype[Any]":
    """Return a type of tokens that was given.

    Raises:
        ConfigurationError: It is no type of integers.
    """
    try:
        found: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]  # checked here
    except genuine(TypeError, ValueError):
        found = np.dtype(object)
    if found.kind not in "iu":
        raise ConfigurationError("dtype", dtype, "a type of integers, such as 'uint16', or None")
    return found


def bare_layout(path: str, size_bytes: int, dtype: "np.dtype[Any] | None") -> Layout:
    """Return the layout of a file of tokens alone.

    Raises:
        ConfigurationError: Their type is not given.
        ShardCorruptError: The file ends within a token.
    """
    if dtype is None:
        raise ConfigurationError(
            "dtype",
            None,
            f"the type of the tokens in {shown_path(path)}, such as 'uint16' for those of nanoGPT: the file has no header, "
            "and no index beside it",
        )
    return Layout(dtype.str, 0, whole_items(path, size_bytes, dtype.itemsize))


def _of_numpy(path: str, file: TokenBytes, head: bytes) -> Layout | None:
    if not head.startswith(_NPY):
        # OLMo and dolma write bare tokens under this name; a damaged header is not taken for them.
        if path.lower().endswith(".npy") and (not head or _NPY_HEADER in head):
            raise ShardCorruptError.of_field(path, "first bytes", repr(_NPY), head[: len(_NPY)])
        return None
    stream = BytesIO(file.read(0, min(file.size_bytes, _LONGEST_NPY_HEADER_BYTES)))
    try:
        version = npy.read_magic(stream)
        # 3.0 is 2.0 with names of fields in UTF-8, and tokens have no fields.
        reads = {
            (1, 0): npy.read_array_header_1_0,
            (2, 0): npy.read_array_header_2_0,
            (3, 0): npy.read_array_header_2_0,
        }
        header = reads[version](stream) if version in reads else None
    except genuine(ValueError) as error:
        raise ShardCorruptError(path, f"its NumPy header cannot be read: {error}") from error
    if header is None:
        expected = f"a NumPy file of version 1.0, 2.0 or 3.0; its version is {version[0]}.{version[1]}"
        raise ConfigurationError("paths", path, expected)
    shape, _, dtype = header
    if len(shape) != 1 or dtype.kind not in "iu":
        expected = f"a NumPy file of integers with one dimension; it has {dtype} of shape {shape}"
        raise ConfigurationError("paths", path, expected)
    first = stream.tell()
    expected = first + shape[0] * dtype.itemsize
    if file.size_bytes != expected:
        raise ShardCorruptError.of_field(path, "size", f"{expected} bytes for {shape[0]} tokens", file.size_bytes)
    return Layout(dtype.str, first, shape[0])


def _of_llm_c(path: str, file: TokenBytes, head: bytes) -> Layout | None:
    if len(head) < _LLM_C.size:
        return None
    magic, version, num_tokens = _LLM_C.unpack_from(head)
    if magic == _LLM_C_EVALUATION:
        raise ConfigurationError("paths", path, "tokens to train on; it has the questions of an evaluation of llm.c")
    if magic not in {known for known, _ in _LLM_C_DTYPES}:
        return None
    dtype = _LLM_C_DTYPES.get((magic, version))
    if dtype is None:
        expected = ", ".join(f"{version} of {known}" for known, version in _LLM_C_DTYPES)
        raise ShardCorruptError.of_field(path, f"version of llm.c's header {magic}", expected, version)
    if len(head) < _LLM_C_HEADER_BYTES:
        raise ShardCorruptError.of_field(path, "size of llm.c's header", f"{_LLM_C_HEADER_BYTES} bytes", len(head))
    expected_bytes = _LLM_C_HEADER_BYTES + num_tokens * dtype.itemsize
    if file.size_bytes != expected_bytes:
        raise ShardCorruptError.of_field(
            path, "size", f"{expected_bytes} bytes for {num_tokens} tokens", file.size_bytes
        )
    return Layout(dtype.str, _LLM_C_HEADER_BYTES, num_tokens)


def _beside(path: str, storage_options: Mapping[str, Any]) -> RangedFile | None:
    try:
        return RangedFile(path, storage_options)
    except ShardNotFoundError:
        return None


def _of_megatron(path: str, file: RangedFile, storage_options: Mapping[str, Any]) -> TokenFile | None:
    index_path = f"{path.removesuffix('.bin')}.idx"
    index = _beside(index_path, storage_options) if path.endswith(".bin") else None
    if index is None:
        return None
    layout = megatron_layout(path, file.size_bytes, index_path, *megatron_end(index_path, index))
    header = header_of(index_path, index)
    num_left = header.num_sequences if header.num_sequences > BLOCK_SEQUENCES else 0
    return TokenFile(path, *layout, file.identity(), index_path, index.identity(), header.num_documents, num_left)


def _of_datatrove(path: str, file: RangedFile, storage_options: Mapping[str, Any]) -> TokenFile | None:
    index_path = f"{path}.index"
    index = _beside(index_path, storage_options) if path.endswith(".ds") else None
    if index is None:
        return None
    layout = datatrove_layout(path, file.size_bytes, index_path, datatrove_end(index_path, index))
    return TokenFile(path, *layout, file.identity(), index_path, index.identity(), index.size_bytes // 8)


def datatrove_end(index_path: str, index: TokenBytes) -> int:
    """Return the tokens of the file that datatrove's index is of.

    Raises:
        ShardCorruptError: The index ends within a number.
    """
    if not whole_items(index_path, index.size_bytes, 8):
        return 0
    (num_tokens,) = struct.unpack("<Q", index.read(index.size_bytes - 8, index.size_bytes))
    return int(num_tokens)


def datatrove_layout(path: str, size_bytes: int, index_path: str, num_tokens: int) -> Layout:
    """Return the layout of a file that datatrove's index is of.

    Raises:
        ShardCorruptError: It does not end where the index says.
    """
    sizes = {num_tokens * size: size for size in (2, 4)} if num_tokens else {0: 2}
    if size_bytes not in sizes:
        what = f"2 or 4 bytes for each of the {num_tokens} tokens, where {index_path} ends"
        raise ShardCorruptError.of_field(path, "size", what, size_bytes)
    return Layout(f"<u{sizes[size_bytes]}", 0, num_tokens)


def may_be_wrong(dtype: np.dtype[Any], vocab_size: int | None) -> bool:
    """Return whether what is stored as this type has to be looked at: not all of it is a token as int64 holds it."""
    return dtype.kind == "f" or (dtype.kind == "u" and dtype.itemsize == 8) or vocab_size is not None


def check_tokens(
    path: str, start: int, stored: npt.NDArray[Any], tokens: npt.NDArray[np.int64], vocab_size: int | None
) -> None:
    """Check that what is stored are tokens.

    Args:
        path: The file.
        start: The offset of the first one in it.
        stored: They as they are stored.
        tokens: The same as int64.
        vocab_size: What they are below; None: any.

    Raises:
        ShardCorruptError: One is no whole number, or too large for int64, or outside the vocabulary.
    """
    wrong: npt.NDArray[np.bool_] = tokens != stored
    expected = "a whole number that int64 holds"
    if vocab_size is not None and not wrong.any():
        wrong = (tokens < 0) | (tokens >= vocab_size)
        expected = f"from 0 to {vocab_size - 1}, for vocab_size={vocab_size}"
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        field = f"token {start + index}"
        raise ShardCorruptError.of_field(shown_path(path), field, expected, stored[index].item())


def parts_of_documents(tokens: npt.NDArray[np.int64], begun: list[int]) -> dict[str, npt.NDArray[Any]]:
    """Return a window of tokens with the parts of documents in it; see ``TokenWindows``.

    Args:
        tokens: The window's, shape (window_size,).
        begun: The positions in it, in order and without 0, where documents begin.
    """
    edges = np.array([0, *begun, len(tokens)])
    sizes = np.diff(edges)
    return {
        "tokens": tokens,
        "document_ids": np.arange(len(sizes), dtype=np.int32).repeat(sizes),
        "position_ids": np.arange(len(tokens)) - edges[:-1].repeat(sizes),
        "cu_seqlens": edges.astype(np.int32),
    }


def ended_documents(tokens: npt.NDArray[np.int64], end_of_document: int) -> list[int]:
    """Return the positions in a window where documents begin behind one that has ended."""
    return (np.flatnonzero(tokens[:-1] == end_of_document) + 1).tolist()


def _content(path: str, storage_options: Mapping[str, Any]) -> tuple[npt.NDArray[np.uint8], FileIdentity]:
    """Return the bytes of an index, mapped if it is a local file, and its identity."""
    local = local_path(path)
    if local is None:
        file = RangedFile(path, storage_options)
        return np.frombuffer(file.read(0, file.size_bytes), np.uint8), file.identity()
    with Path(local).open("rb") as opened:
        identity = FileIdentity.of_descriptor(opened.fileno())
        # An empty file cannot be mapped.
        content = np.memmap(opened, np.uint8, "r") if identity.size_bytes else np.empty(0, np.uint8)
    return content, identity


class _DatatroveIndex(Documents):
    """The ends of documents."""

    def __init__(self, file: TokenFile, content: npt.NDArray[np.uint8]) -> None:
        self._file = file
        self._ends: npt.NDArray[np.uint64] = content.view("<u8")
        self.num = len(self._ends)

    def start_of(self, document: int) -> int:
        start = int(self._ends[document - 1]) if document else 0
        if start > self._file.num_tokens:
            what = f"at most the {self._file.num_tokens} tokens of {self._file.path}"
            raise ShardCorruptError.of_field(str(self._file.index_path), f"end of document {document - 1}", what, start)
        return start

    def lengths(self) -> npt.NDArray[Any]:
        return checked_lengths(str(self._file.index_path), np.diff(self._ends.astype(np.int64), prepend=0))
