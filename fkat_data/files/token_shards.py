"""Files of tokens as a stream's shards: windows of one length, in parts that a cache keeps one by one."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.files.mapping import mapped_span
from fkat_data.files.megatron import megatron_end, megatron_layout
from fkat_data.files.shard import (
    Column,
    DescribedFile,
    FileInfo,
    PartReader,
    ReadOptions,
    ShardEntry,
    StoredBytes,
    checked_rows,
)
from fkat_data.files.token_layout import Layout
from fkat_data.files.tokens import (
    bare_layout,
    check_dtype,
    check_tokens,
    datatrove_end,
    datatrove_layout,
    digest_of,
    dtype_of,
    ended_documents,
    layout_of,
    may_be_wrong,
    parts_of_documents,
)

# Read of each file to know it again: a store takes a request for each.
_NUM_BLOCKS = 4
# The most stored bytes of a part, unless a window is larger.
_PART_BYTES = 32 << 20
_MEGATRON_INDEX, _DATATROVE_INDEX = ".idx", ".ds.index"
_COLUMNS = (Column("tokens", "int64"),)
_BOUNDARIES = (Column("document_ids", "int32"), Column("position_ids", "int64"), Column("cu_seqlens", "int32"))


class TokenWindowing(NamedTuple):
    """The windows into which the tokens of a stream's files are cut; see the argument ``tokens`` of ``Stream``.

    Attributes:
        window_size: Tokens of a window.
        stride: Tokens from the beginning of a window to that of the next.
        dtype: The type of the tokens in files that do not say it; None: all must.
        end_of_document: The token that ends a document, for samples with boundaries; None: samples have none.
        vocab_size: What tokens are below; None: any is read.
    """

    window_size: int
    stride: int
    dtype: str | None
    end_of_document: int | None
    vocab_size: int | None


def checked_windowing(value: object) -> TokenWindowing:
    """Return the argument ``tokens`` of a stream.

    Raises:
        ConfigurationError: It is no mapping with ``window_size``, or something in it is invalid.
    """
    if isinstance(value, TokenWindowing):
        return value
    given: dict[str, Any] = dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}
    if "window_size" not in given or not set(given) <= set(TokenWindowing._fields):
        names = ", ".join(TokenWindowing._fields[1:])
        expected = (
            f"a mapping with window_size, and perhaps {names}; end_of_document adds boundaries, which no index does"
        )
        raise ConfigurationError("tokens", cast("object", value), expected)
    window_size = arguments.integer("tokens: window_size", given["window_size"], minimum=1)

    def integer(name: str, minimum: int) -> int | None:
        found = given.get(name)
        return None if found is None else arguments.integer(f"tokens: {name}", found, minimum=minimum)

    dtype = given.get("dtype")
    return TokenWindowing(
        window_size,
        integer("stride", 1) or window_size,
        None if dtype is None else dtype_of(dtype).str,
        integer("end_of_document", 0),
        integer("vocab_size", 1),
    )


def check_windowing(windowing: TokenWindowing | None, kind: str, name: str) -> None:
    """Check that ``tokens`` of a stream is given for files of tokens, and for no others.

    Args:
        windowing: The argument.
        kind: The format of the stream's files.
        name: One of them.

    Raises:
        ConfigurationError: It is not so.
    """
    if windowing is None and kind == "tokens":
        raise ConfigurationError("tokens", None, f"a mapping such as {{'window_size': 2049}}, for the tokens of {name}")
    if windowing is not None and kind != "tokens":
        raise ConfigurationError("tokens", windowing._asdict(), f"None: {name} is {kind}, and holds no tokens")


class WindowsOfPart(NamedTuple):
    """The windows of a part of a file, and the layout of its tokens.

    Attributes:
        first: The first of its windows, counted in the file.
        layout: Where the file's tokens are.
        windowing: How they are cut.
        digest: What differs where the file's size or content do.
    """

    first: int
    layout: Layout
    windowing: TokenWindowing
    digest: int

    @property
    def digest_of_windows(self) -> int:
        """A number that differs where the file's size or content do, or how windows are cut."""
        size, stride, *_ = self.windowing
        return zlib.crc32(f"{self.layout.dtype} windows of {size} by {stride}".encode(), self.digest)

    def __str__(self) -> str:
        return f"from window {self.first}"


def describe(file: StoredBytes) -> dict[str, Any]:
    """Return what the first bytes of a file say of its tokens, or an index beside it of another file; see ``formats``.

    Raises:
        ShardCorruptError: A header or an index contradicts itself, or the file holds no tokens.
    """
    name = file.name.lower()
    if name.endswith(_MEGATRON_INDEX):
        dtype, end = megatron_end(file.name, file, compares_all=True)
        return {"dtype": dtype, "end": end}
    if name.endswith(_DATATROVE_INDEX):
        return {"end": datatrove_end(file.name, file)}
    return {"layout": layout_of(file.name, file), "digest": digest_of(file, _NUM_BLOCKS)}


def entries_of(
    files: Sequence[DescribedFile],
    columns: tuple[str, ...] | None,
    windowing: TokenWindowing,
    *,
    is_in_place: bool,
) -> list[ShardEntry]:
    """Return the shards of all files, in the order of the files: parts of at most 32 MiB.

    Args:
        files: The files, sorted by name, with the indices beside them.
        columns: The columns to read; None: all.
        windowing: How tokens become samples.
        is_in_place: Whether the files are read in place.

    Raises:
        ConfigurationError: There is no such column; or a file needs ``dtype``, or has another.
        ShardCorruptError: A file does not fit the index beside it.
    """
    described = _COLUMNS if windowing.end_of_document is None else _COLUMNS + _BOUNDARIES
    present = [column.name for column in described]
    for name in columns or ():
        if name not in present:
            hint = "" if len(present) > 1 else ", and with end_of_document in tokens= its boundaries"
            raise ConfigurationError("columns", name, f"columns of {files[0].name}: {', '.join(present)}{hint}")
    indices = {file.name: file for file in files if file.name.lower().endswith((_MEGATRON_INDEX, _DATATROVE_INDEX))}
    tokens = [file for file in files if file.name not in indices]
    if not tokens:
        raise ConfigurationError(
            "remote", files[0].name, "files of tokens; this is an index: name the file that it is of"
        )
    for name in indices.keys() - {index_of(file.name) for file in tokens}:
        expected = f"files of tokens with the indices beside them; {name} is an index, and the stream lacks its tokens"
        raise ConfigurationError("remote", name, expected)
    return [
        ShardEntry("tokens", num_windows, described, info, part=part)
        for file in tokens
        for part, num_windows, info in _parts(file, _layout(file, indices, windowing), windowing, is_in_place)
    ]


def index_of(name: str) -> str:
    """Return the name that the index beside a file of tokens would have."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}{_MEGATRON_INDEX}" if suffix.lower() == "bin" else f"{name}.index"


def _layout(file: DescribedFile, indices: Mapping[str, DescribedFile], windowing: TokenWindowing) -> Layout:
    given = None if windowing.dtype is None else np.dtype(windowing.dtype)
    index = indices.get(index_of(file.name))
    if file.description["layout"] is not None:
        found = Layout(*file.description["layout"])
    elif index is not None and index.name.endswith(_MEGATRON_INDEX):
        end = index.description
        found = megatron_layout(file.name, file.size_bytes, index.name, end["dtype"], end["end"])
    elif index is not None:
        found = datatrove_layout(file.name, file.size_bytes, index.name, index.description["end"])
    else:
        found = bare_layout(file.name, file.size_bytes, given)
    check_dtype(file.name, given, found.dtype)
    return found


def _parts(
    file: DescribedFile, layout: Layout, windowing: TokenWindowing, is_in_place: bool
) -> "list[tuple[WindowsOfPart, int, FileInfo]]":
    """Return the parts of a file: its windows, how many they are, and the bytes of them."""
    size, stride, item_bytes = windowing.window_size, windowing.stride, np.dtype(layout.dtype).itemsize
    num_windows = max(0, (layout.num_tokens - size) // stride + 1)
    most = max(1, _PART_BYTES // (stride * item_bytes))
    parts: list[tuple[WindowsOfPart, int, FileInfo]] = []
    for first in range(0, num_windows, most):
        count = min(most, num_windows - first)
        start = layout.first_byte + first * stride * item_bytes
        stop = start + ((count - 1) * stride + size) * item_bytes
        info = file.info(f"{size}.{stride}.{first}.{count}", ((start, stop),), is_in_place=is_in_place)
        parts.append((WindowsOfPart(first, layout, windowing, file.description["digest"]), count, info))
    return parts


class TokenReader(PartReader):
    """An open part of a file of tokens.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        options: How its rows are read.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The file's size contradicts the index, or it was written again.
    """

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        super().__init__(directory, entry, options)
        self._part: WindowsOfPart = entry.part
        self._chosen = entry.chosen
        ((start, stop),) = self._origin.ranges
        # In place the whole file is there; in a cache, its bytes alone.
        whole, first = (self._origin.size_bytes, start) if self._is_in_place else (stop - start, 0)
        info = FileInfo(self._name, whole)
        content = mapped_span(self._path, info, first, first + stop - start, options.register)
        self._stored: npt.NDArray[Any] = np.frombuffer(content, self._part.layout.dtype)
        self._check_version()

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        chosen = checked_rows(rows, self.num_samples).tolist()
        self._check_version()  # to read a file that was cut off would end the process
        samples = [self._sample(row) for row in chosen]
        self._check_version()
        return samples

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values as a list; see ``ShardReader``."""
        samples = self.samples(rows)
        return {name: [sample[name] for sample in samples] for name in (samples[0] if samples else ())}

    def raw(self, row: int) -> memoryview:
        """Return the bytes of a window; see ``ShardReader``."""
        (chosen,) = checked_rows([row], self.num_samples).tolist()
        return memoryview(self._window(chosen).tobytes())

    def close(self) -> None:
        """Release the file; see ``ShardReader``."""
        self.num_samples = 0
        self._stored = np.empty(0, self._stored.dtype)

    def _window(self, row: int) -> npt.NDArray[Any]:
        windowing = self._part.windowing
        return self._stored[row * windowing.stride : row * windowing.stride + windowing.window_size]

    def _sample(self, row: int) -> dict[str, Any]:
        windowing, stored = self._part.windowing, self._window(row)
        tokens = stored.astype(np.int64)
        if may_be_wrong(stored.dtype, windowing.vocab_size):
            position = (self._part.first + row) * windowing.stride
            check_tokens(self._name, position, stored, tokens, windowing.vocab_size)
        sample: dict[str, Any] = {"tokens": tokens}
        if windowing.end_of_document is not None:
            sample = parts_of_documents(tokens, ended_documents(tokens, windowing.end_of_document))
        if self._arrays == "torch":
            sample = {name: torch.from_numpy(values) for name, values in sample.items()}
        return sample if self._chosen is None else {name: sample[name] for name in self._chosen}
