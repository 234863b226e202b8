"""Read JSON Lines files, by index or sequentially: one JSON value per line; plain, gzip or zstd."""

import json
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from fkat_data import arguments
from fkat_data.counted_file import CountedFile
from fkat_data.datasets.indexed_files import DatasetOfFiles, IndexedFiles, counted
from fkat_data.errors import ShardCorruptError
from fkat_data.files.opening import TextFile, changed, shown_path
from fkat_data.interruption import genuine

_MAX_LINE_BYTES = 64 << 20


class _JsonFiles(DatasetOfFiles):
    """One or more JSON Lines files."""

    def __init__(
        self, paths: str | Sequence[str], storage_options: Mapping[str, Any] | None, max_line_bytes: int
    ) -> None:
        super().__init__(paths, storage_options)
        self.max_line_bytes: int = arguments.integer("max_line_bytes", max_line_bytes, minimum=1)
        self._files = [TextFile(path, self.storage_options) for path in self.paths]


def _counted_files(
    paths: str | Sequence[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    max_line_bytes: int = _MAX_LINE_BYTES,
) -> list[CountedFile]:
    """Return the files, to be counted without a dataset; takes the arguments of the constructor.

    Raises:
        ConfigurationError: ``paths`` is empty.
    """

    def num_lines(path: str, options: Mapping[str, Any]) -> int:
        return LineIndex.of(path, TextFile(path, options).chunks(), max_line_bytes).num_lines

    return counted("json lines", paths, storage_options, num_lines)


class JsonDataset(_JsonFiles, IndexedFiles):
    """The lines of one or more JSON Lines files, as a map-style dataset.

    The constructor reads every file once to index its lines. The index takes at most 8 MiB per file and is pickled
    with the dataset. A sample is the JSON value of its line, usually a dict, and is read when it is requested. A
    compressed file is decompressed to an unnamed temporary file, once per process; forked children share it.

    The first bytes of a file tell whether it is plain, gzip or zstd (``pip install 'fkat_data[json]'``). Blank lines
    do not count.

    Args:
        paths: One or more files, read in this order: local paths, or URIs that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.
        max_line_bytes: Maximum length of a line in bytes; a longer line is an error.

    Raises:
        ConfigurationError: ``paths`` is empty, or a file needs zstandard, which is not installed.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: Compressed data is damaged or truncated, or a line is too long.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(_counted_files)

    def __init__(
        self,
        paths: str | Sequence[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        max_line_bytes: int = _MAX_LINE_BYTES,
    ) -> None:
        super().__init__(paths, storage_options, max_line_bytes)
        self._indices = [LineIndex.of(file.path, file.chunks(), self.max_line_bytes) for file in self._files]
        # Of the files that were indexed, or that proved to have the same text.
        self._versions = [file.version_read for file in self._files]
        # _ends[f]: samples up to and including file f.
        self._ends = np.cumsum([index.num_lines for index in self._indices], dtype=np.int64)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``, in that order. Each block of a file is read once.

        Args:
            indices: Indices of samples; negative ones count from the end.

        Raises:
            IndexError: An index is out of range.
            ShardCorruptError: A sample is invalid, or its file has changed since it was indexed.
        """
        return self._by_file(indices, self._samples)

    def _place(self, part: int, row: int) -> str:
        return _place(self.paths[part], row)

    def file_digests(self) -> list[int]:
        """Return a number for each file that differs where its text does."""
        return [index.checksum for index in self._indices]

    def _samples(self, file_number: int, rows: list[int]) -> Iterator[Any]:
        file, index = self._files[file_number], self._indices[file_number]
        blocks: dict[int, list[tuple[int, bytes]]] = {}
        for line in rows:
            number = line // index.stride
            if number not in blocks:
                offset, size = index.block(number)
                within = lines_of(file.path, [file.read(offset, size)], self.max_line_bytes)
                blocks[number] = [(offset + begin, text) for begin, text in within]
        self._check(file_number)
        for line in rows:
            number, line_in_block = divmod(line, index.stride)
            offset, text = blocks[number][line_in_block]
            yield _parsed(file.path, line, offset, text)

    def _check(self, file_number: int) -> None:
        """Check that what was read is of the text that was indexed. Reads it again if the file may be another.

        Raises:
            ShardCorruptError: It is not.
        """
        file, index = self._files[file_number], self._indices[file_number]
        if (version := file.version()) == self._versions[file_number]:
            return
        # A file that only became longer, even while it is read here, or was copied to another machine, has the same lines.
        if file.checksum(index.num_bytes) != index.checksum:
            raise changed(file.path, "it does not have the text that this dataset was made of")
        self._versions[file_number] = version  # of before the text was read: a later change is another version


class IterableJsonDataset(_JsonFiles, IterableDataset[Any]):
    """The lines of one or more JSON Lines files in order, as an iterable dataset.

    The samples are those of ``JsonDataset``. It builds no index and writes no file, and holds about 1 MiB in memory.
    In a DataLoader with *n* workers, worker *w* yields the samples *w*, *w + n* and so on, so that each sample comes
    once; every worker reads all files.

    Files are opened when iteration begins. A resume replays this dataset up to its position, while ``JsonDataset``
    skips what was delivered.

    Args:
        paths: One or more files, read in this order: local paths, or URIs that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.
        max_line_bytes: Maximum length of a line in bytes; a longer line is an error.

    Raises:
        ConfigurationError: ``paths`` is empty; during iteration, if a file needs zstandard, which is not installed.
        ShardNotFoundError: During iteration, if a file does not exist.
        ShardCorruptError: During iteration, if compressed data is damaged or truncated, or a line is too long or not
            valid JSON.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(_counted_files)

    def __init__(
        self,
        paths: str | Sequence[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        max_line_bytes: int = _MAX_LINE_BYTES,
    ) -> None:
        super().__init__(paths, storage_options, max_line_bytes)

    def __iter__(self) -> Iterator[Any]:
        for sample, _ in self.placed_samples():
            yield sample

    def placed_samples(self) -> Iterator[tuple[Any, tuple[str, int]]]:
        """Yield each sample with its file and its line, which counts from 0 and no blank lines.

        Raises:
            Exception: What iterating over the dataset raises.
        """
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        num_samples = 0
        for file in self._files:
            for line, (offset, text) in enumerate(lines_of(file.path, file.chunks(), self.max_line_bytes)):
                if num_samples % num_workers == worker:
                    yield _parsed(file.path, line, offset, text), (file.path, line)
                num_samples += 1

    @staticmethod
    def place_text(place: tuple[str, int]) -> str:
        """Return a place of ``placed_samples`` in words."""
        return _place(*place)


def _place(path: str, line: int) -> str:
    return f"line {line} (from 0, blank lines not counted) of {shown_path(path)}"


def _parsed(path: str, line: int, offset: int, text: bytes) -> Any:
    try:
        return json.loads(text)
    except genuine(ValueError, RecursionError) as error:
        place = f"line {line} (from 0, blank lines not counted), at byte {offset} of the text"
        found = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        # A file of one JSON document over several lines fails in the first.
        advice = "" if line else "; each line must be a JSON value of its own"
        raise ShardCorruptError(path, f"{place}: {found}{advice}") from error


_MAX_ANCHORS = 1 << 20
_TAB, _CARRIAGE_RETURN, _SPACE = b"\t\r "


class LineIndex(NamedTuple):
    """Offsets of every ``stride``-th line of a text. Blank lines do not count.

    Attributes:
        anchors: int64: offsets in bytes of the lines 0, ``stride``, 2 ``stride`` and so on.
        stride: Lines per anchor. It doubles whenever the anchors exceed about a million, or 8 MiB.
        num_lines: Number of lines in the text.
        num_bytes: Size of the text in bytes.
        checksum: CRC-32 of the text.
    """

    anchors: "array[int]"
    stride: int
    num_lines: int
    num_bytes: int
    checksum: int

    @classmethod
    def of(
        cls, path: str, chunks: Iterable[bytes], max_line_bytes: int, max_anchors: int = _MAX_ANCHORS
    ) -> "LineIndex":
        """Return the index of a text.

        Args:
            path: File of the text, for error messages.
            chunks: The text, in pieces of any size.
            max_line_bytes: Maximum length of a line in bytes.
            max_anchors: Maximum number of anchors; beyond it, every second one is dropped.

        Raises:
            ShardCorruptError: A line is longer than ``max_line_bytes``.
        """
        anchors, stride, num_lines, num_bytes = array("q"), 1, 0, 0
        checksum = 0
        for offset, text in _whole_lines(path, chunks, max_line_bytes):
            begins = _begins(text) + offset
            first = -num_lines % stride
            anchors.frombytes(begins[first::stride].astype(np.int64).tobytes())
            num_lines += len(begins)
            num_bytes = offset + len(text)
            checksum = zlib.crc32(text, checksum)
            while len(anchors) > max_anchors:
                anchors, stride = anchors[::2], 2 * stride
        return cls(anchors, stride, num_lines, num_bytes, checksum)

    def block(self, number: int) -> tuple[int, int]:
        """Return offset and size in bytes of the ``stride`` lines that begin at an anchor."""
        end = self.anchors[number + 1] if number + 1 < len(self.anchors) else self.num_bytes
        return self.anchors[number], end - self.anchors[number]


def lines_of(path: str, chunks: Iterable[bytes], max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text that are not blank, each with its offset in bytes.

    Args:
        path: File of the text, for error messages.
        chunks: The text, in pieces of any size.
        max_line_bytes: Maximum length of a line in bytes.

    Raises:
        ShardCorruptError: A line is longer than ``max_line_bytes``.
    """
    for offset, text in _whole_lines(path, chunks, max_line_bytes):
        begins: list[int] = _begins(text).tolist()  # empty if all lines are blank
        for begin, end in zip(begins, [*begins, len(text)][1:], strict=True):
            yield offset + begin, text[begin:end]


def _whole_lines(path: str, chunks: Iterable[bytes], max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of whole lines, with their offsets."""
    offset, rest = 0, b""
    for chunk in chunks:
        text = rest + chunk
        end = text.rfind(b"\n", len(rest)) + 1
        if end:
            yield offset, text[:end]
        offset, rest = offset + end, text[end:]
        if len(rest) > max_line_bytes:
            reason = f"the line at byte {offset} of the text is longer than max_line_bytes = {max_line_bytes:,}"
            raise ShardCorruptError(path, reason)
    if rest:
        yield offset, rest


def _begins(text: bytes) -> npt.NDArray[Any]:
    """Return the offsets of the lines that are not blank."""
    content = np.frombuffer(text, np.uint8)
    begins = np.concatenate([[0], np.flatnonzero(content == ord("\n")) + 1])
    begins = begins[begins < len(text)]
    if not len(begins):
        return begins
    # Blank are the space and what lies from tab to carriage return; zeros are no text, and not blank: they are damage.
    is_blank = (content - np.uint8(_TAB) <= _CARRIAGE_RETURN - _TAB) | (content == _SPACE)
    return begins[~np.logical_and.reduceat(is_blank, begins)]
