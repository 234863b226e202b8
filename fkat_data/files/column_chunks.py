"""Read the column chunks of a remote Parquet file: those of a row group together, before pyarrow asks for them."""

from collections.abc import Iterator, Sequence
from typing import Any

from fkat_data.files.opening import RangedFile, ReadRange
from fkat_data.files.remote import Span, joined_spans

#: Read at once from the end of a file: nearly all footers are smaller.
_TAIL_BYTES = 64 << 10
#: The length of the footer, and the magic bytes after it.
_END_BYTES = 8
#: What follows the footer of a file whose columns are encrypted, and whose footer is not.
_SIGNATURE_BYTES = 28


class HeldRanges:
    """Ranges of a file, in memory; it asks the file for any other.

    Args:
        file: The file.
        spans: The ranges, which are fetched now.
        others: Others of the same file, whose ranges it has, too.

    Raises:
        ShardCorruptError: The file has become shorter.
        OSError: The file cannot be read.
    """

    def __init__(self, file: RangedFile, spans: Sequence[Span], others: "HeldRanges | None" = None) -> None:
        self._read: ReadRange = file.read
        self._held: list[tuple[int, int, memoryview]] = [] if others is None else list(others._held)  # noqa: SLF001 - of the same class
        missing = self.missing(spans)
        read = file.together(missing)
        self._held += [(start, stop, memoryview(read(start, stop))) for start, stop in missing]

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
        for first, last, content in self._held:
            if first <= start and stop <= last:
                return content[start - first : stop - first]
        return None


def chunk_spans(metadata: Any, group_index: int, leaves: Sequence[int], size_bytes: int, end: bytes) -> list[Span]:
    """Return where the column chunks of a row group are; those within the file, since a footer may be damaged.

    Args:
        metadata: The footer, as pyarrow parses it.
        group_index: The row group.
        leaves: The numbers of the leaf columns.
        size_bytes: The size of the file.
        end: The last bytes of the file.
    """
    if int.from_bytes(end[-_END_BYTES:-4], "little") - metadata.serialized_size == _SIGNATURE_BYTES:
        return []  # pyarrow ends the process when it is asked where such columns are
    group = metadata.row_group(group_index)
    spans = [chunk_span(group.column(leaf)) for leaf in leaves]
    return [(start, stop) for start, stop in spans if 0 <= start < stop <= size_bytes]


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
