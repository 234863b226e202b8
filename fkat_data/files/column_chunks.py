"""Read the column chunks of a remote Parquet file: those of a row group together, before pyarrow asks for them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from fkat_data.files.opening import RangedFile, ReadRange
from fkat_data.files.remote import Span, joined_spans
from fkat_data.files.row_groups import unreadable
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import required

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_parquet = required("pyarrow.parquet", "parquet")

#: Read at once from the end of a file: nearly all footers are smaller.
_TAIL_BYTES = 64 << 10


class HeldRanges:
    """Ranges of a file, in memory; it asks the file for any other.

    Args:
        file: The file.
        spans: The ranges, which are fetched now.
        others: Others of the same file, whose ranges it has, too.
        is_ahead: Whether the caller reads ahead itself.

    Raises:
        ShardCorruptError: The file has become shorter.
        OSError: The file cannot be read.
    """

    def __init__(
        self, file: RangedFile, spans: Sequence[Span], others: "HeldRanges | None" = None, *, is_ahead: bool = False
    ) -> None:
        self._read: ReadRange = file.read
        self._held: list[tuple[int, int, memoryview]] = [] if others is None else list(others._held)  # noqa: SLF001 - of the same class
        missing = self.missing(spans)
        found = file.buffers(missing, is_ahead=is_ahead)
        self._held += [(*span, memoryview(content)) for span, content in zip(missing, found, strict=True)]

    @classmethod
    def tail(cls, file: RangedFile) -> "HeldRanges":
        """Return the end of a file, with its footer."""
        return cls(file, [(max(0, file.size_bytes - _TAIL_BYTES), file.size_bytes)])

    def read(self, start: int, stop: int) -> Any:
        """Return bytes of the file, without a copy where they are held."""
        part = self._part(start, stop)
        return self._read(start, stop) if part is None else part

    def missing(self, spans: Sequence[Span]) -> list[Span]:
        """Return what is not held of some ranges."""
        return [span for span in joined_spans(spans, 0) if self._part(*span) is None]

    def _part(self, start: int, stop: int) -> memoryview | None:
        return bytes_within(self._held, start, stop)


def bytes_within(held: Iterable[tuple[int, int, memoryview]], start: int, stop: int) -> memoryview | None:
    """Return bytes of a file of which some ranges are held, each with its first byte and the one behind its last.

    None: no range has all of them.
    """
    for first, last, content in held:
        if first <= start and stop <= last:
            return content[start - first : stop - first]
    return None


def chunk_spans(metadata: Any, group_index: int, leaves: Sequence[int], size_bytes: int) -> list[Span]:
    """Return where the column chunks of a row group are; those within the file, since a footer may be damaged.

    Args:
        metadata: The footer, as pyarrow parses it; ``ChunkCheck`` finds no fault in these chunks.
        group_index: The row group.
        leaves: The numbers of the leaf columns.
        size_bytes: The size of the file.
    """
    group = metadata.row_group(group_index)
    spans = [chunk_span(group.column(leaf)) for leaf in leaves]
    return [(start, stop) for start, stop in spans if 0 <= start < stop <= size_bytes]


class ChunkCheck:
    """A check of what a footer says of column chunks.

    pyarrow ends the process where it is asked for a chunk whose description contradicts itself. Where it is to read
    the chunk, it raises, before it reads.

    Args:
        path: The file.
        metadata: The footer, as pyarrow parses it.
        size_bytes: The size of the file.
    """

    def __init__(self, path: str, metadata: Any, size_bytes: int) -> None:
        self._path = path
        source = positioned(_refuse_to_read, size_bytes)()
        # With a buffer, pyarrow makes the readers of all chunks before it reads of the first one.
        self._file = _parquet.ParquetFile(source, metadata=metadata, buffer_size=1, pre_buffer=False)

    def check(self, group_index: int, leaves: Sequence[int]) -> None:
        """Check some chunks of a row group.

        Args:
            group_index: The row group.
            leaves: The numbers of the leaf columns.

        Raises:
            ShardCorruptError: A description is damaged.
            ConfigurationError: A chunk is encrypted, or compressed as pyarrow cannot read it.
        """
        try:
            self._file.reader.read_row_group(group_index, column_indices=list(leaves), use_threads=False)
        except genuine(_ReachedDataError):
            pass
        except genuine(_arrow.ArrowException, OSError) as error:
            raise unreadable(self._path, f"the footer cannot be read: row group {group_index}", error) from error


class _ReachedDataError(Exception):
    """All descriptions were read, and data comes next."""


def _refuse_to_read(start: int, stop: int) -> NoReturn:
    del start, stop
    raise _ReachedDataError


def chunk_span(chunk: Any) -> Span:
    """Return the first byte of a column chunk, and the one behind its last."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


def in_slices(items: Sequence[tuple[int, int]], most_bytes: int) -> Iterator[list[int]]:
    """Yield items in slices that together take at most ``most_bytes``, or are one item.

    Args:
        items: Each with its bytes.
        most_bytes: The limit.
    """
    taken: list[int] = []
    num_bytes = 0
    for item, size_bytes in items:
        if taken and num_bytes + size_bytes > most_bytes:
            yield taken
            taken, num_bytes = [], 0
        taken.append(item)
        num_bytes += size_bytes
    if taken:
        yield taken


def positioned(bytes_of: Callable[[int, int], Any], size_bytes: int) -> Callable[[], Any]:
    """Return what makes files for pyarrow, each with a position of its own, from what returns bytes."""
    return lambda: _arrow.PythonFile(_Positioned(bytes_of, size_bytes), mode="r")


class _Positioned:
    """A file, for pyarrow.

    Args:
        bytes_of: Called with the first byte and the one behind the last; returns the bytes.
        size_bytes: The size of the file.
    """

    closed = False

    def __init__(self, bytes_of: Callable[[int, int], Any], size_bytes: int) -> None:
        self._bytes_of = bytes_of
        self._size_bytes = size_bytes
        self._position = 0

    def read_buffer(self, num_bytes: int = -1) -> Any:
        """Return the next bytes, without copying them."""
        start = self._position
        self._position = stop = self._size_bytes if num_bytes < 0 else start + num_bytes
        return _arrow.py_buffer(self._bytes_of(start, stop))

    def read(self, num_bytes: int = -1) -> bytes:
        """Return the next bytes."""
        return self.read_buffer(num_bytes).to_pybytes()

    def seek(self, position: int, origin: int = 0) -> int:
        """Go to a position of the file."""
        self._position = position + (0, self._position, self._size_bytes)[origin]
        return self._position

    def tell(self) -> int:
        """Return the position in the file."""
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the bytes stay for the next decoding."""
