"""The index of Parquet files, made from their footers: each row group is a shard. Needs the extra ``parquet``."""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2s
from typing import Any

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.interruption import genuine
from fkat_data.requirement import required
from fkat_data.streaming.formats.entry import Column, ShardEntry
from fkat_data.streaming.formats.file_formats import DescribedFile, StoredBytes

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")
_parquet = required("pyarrow.parquet", "parquet")

_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
#: The length of the footer and the magic bytes after it.
_TAIL_BYTES = 8
#: Read at once from the end of a file: nearly all footers are smaller.
_FIRST_READ_BYTES = 64 << 10
#: Ranges that are closer than this are fetched together.
_LARGEST_GAP_BYTES = 32 << 10


def describe(file: StoredBytes) -> dict[str, Any]:
    """Return the columns and row groups of a file. Reads its footer alone; see ``FileFormat``.

    Raises:
        ShardCorruptError: The file is no Parquet file, is torn, or its footer contradicts itself.
        ConfigurationError: The file is encrypted.
    """
    start, footer = _footer_of(file)
    metadata = parsed_footer(file.name, footer)
    try:
        fields = [(field.name, field.type) for field in metadata.schema.to_arrow_schema()]
    except genuine(_arrow.ArrowException) as error:
        raise ShardCorruptError(file.name, f"its columns cannot be read: {error}") from error
    num_leaves = [_num_leaves(kind) for _, kind in fields]
    if sum(num_leaves) != metadata.num_columns:
        raise ShardCorruptError.of_field(
            file.name, "number of column chunks", f"{sum(num_leaves)}, as in the schema", metadata.num_columns
        )
    names = [name for name, _ in fields]
    if len(set(names)) < len(names):
        raise ShardCorruptError.of_field(file.name, "columns", "names without duplicates", names)
    groups = [_group(file.name, metadata.row_group(group), num_leaves) for group in range(metadata.num_row_groups)]
    for number, (num_rows, *edges) in enumerate(groups):
        _check_group(file.name, number, num_rows, edges, start)
    return {
        "footer": [start, start + len(footer)],
        "columns": [[name, str(kind), _size_bytes(kind)] for name, kind in fields],
        "groups": groups,
    }


def entries_of(
    files: Sequence[DescribedFile], columns: tuple[str, ...] | None, *, is_in_place: bool
) -> list[ShardEntry]:
    """Return a shard for each row group that has rows; see ``FileFormat``."""
    entries: list[ShardEntry] = []
    types: dict[str, str] = {}
    chosen: tuple[Column, ...] = ()
    for file in files:
        description = file.description
        present = {name: (index, kind, size) for index, (name, kind, size) in enumerate(description["columns"])}
        _check_columns(file.name, {name: kind for name, (_, kind, _) in present.items()}, columns, types, files[0].name)
        found = tuple(Column(name, present[name][1], present[name][2]) for name in types)
        # Shards with equal columns share one object.
        chosen = chosen if found == chosen else found
        positions = [present[name][0] for name in types]
        is_whole = len(positions) == len(present)
        footer = file.info("footer", (tuple(description["footer"]),), is_in_place=is_in_place)
        for group, (num_rows, *edges) in enumerate(description["groups"]):
            if not num_rows:
                continue
            ranges = tuple(_joined(sorted((edges[2 * index], edges[2 * index + 1]) for index in positions)))
            label = f"{group:05}" if is_whole else f"{group:05}.{_digest(ranges)}"
            entries.append(
                ShardEntry(
                    "parquet",
                    num_rows,
                    chosen,
                    file.info(label, ranges, is_in_place=is_in_place),
                    raw_meta=None if is_in_place else footer,
                    part=group,
                )
            )
    return entries


def parsed_footer(file: str, footer: bytes) -> Any:
    """Return the metadata in a footer.

    Raises:
        ShardCorruptError: The footer is damaged.
    """
    # Offsets in the footer are those of the file, and pyarrow looks at no other byte here.
    content = b"".join((_MAGIC, footer, len(footer).to_bytes(4, "little"), _MAGIC))
    try:
        return _parquet.read_metadata(_arrow.BufferReader(content))
    except genuine(_arrow.ArrowException, OSError) as error:
        if re.search("encrypt|decrypt", str(error), re.IGNORECASE):
            raise _encrypted(file) from error
        raise ShardCorruptError(file, f"the footer cannot be read: {error}") from error


def _footer_of(file: StoredBytes) -> tuple[int, bytes]:
    """Return where the footer of a file begins, and the footer."""
    size_bytes = file.size_bytes
    least_bytes = len(_MAGIC) + _TAIL_BYTES
    if size_bytes < least_bytes:
        raise ShardCorruptError(file.name, f"not a Parquet file: {size_bytes} bytes, fewer than {least_bytes}")
    first = max(0, size_bytes - _FIRST_READ_BYTES)
    tail = file.read(first, size_bytes)
    if tail[-4:] == _ENCRYPTED:
        raise _encrypted(file.name)
    if tail[-4:] != _MAGIC:
        raise ShardCorruptError(
            file.name, f"not a Parquet file, or torn: it ends with {tail[-4:]!r} instead of {_MAGIC!r}"
        )
    footer_bytes = int.from_bytes(tail[-_TAIL_BYTES:-4], "little")
    start = size_bytes - _TAIL_BYTES - footer_bytes
    if start < len(_MAGIC):
        expected = f"at most {size_bytes - least_bytes}, the size of the rest of the file"
        raise ShardCorruptError.of_field(file.name, "size of the footer in bytes", expected, footer_bytes)
    head = file.read(start, first) if start < first else b""
    return start, (head + tail[max(0, start - first) :])[:footer_bytes]


def _check_group(file: str, number: int, num_rows: int, edges: list[int], end: int) -> None:
    """Check that the columns of a row group are within the bytes of the file before ``end``, the footer."""
    if num_rows < 0:
        raise ShardCorruptError.of_field(file, f"rows of row group {number}", "at least 0", num_rows)
    for begin, stop in zip(edges[::2], edges[1::2], strict=True):
        if num_rows and not len(_MAGIC) <= begin <= stop <= end:
            expected = f"within the bytes {len(_MAGIC)} to {end} of the file"
            raise ShardCorruptError.of_field(file, f"range of row group {number}", expected, (begin, stop))


def _encrypted(file: str) -> ConfigurationError:
    return ConfigurationError("remote", file, "a Parquet file without encryption, which fkat_data does not read")


def _group(file: str, group: Any, num_leaves: list[int]) -> list[int]:
    """Return the number of rows of a row group, then the first byte of each column and the byte after its last."""
    edges: list[int] = [group.num_rows]
    leaf = 0
    for count in num_leaves:
        spans: list[tuple[int, int]] = []
        for index in range(leaf, leaf + count):
            chunk = group.column(index)
            if chunk.file_path:
                raise ShardCorruptError(file, f"its columns are in another file, {chunk.file_path!r}")
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            spans.append((start, start + chunk.total_compressed_size))
        edges += [min(start for start, _ in spans), max(stop for _, stop in spans)]
        leaf += count
    return edges


def _check_columns(
    file: str, present: Mapping[str, str], columns: tuple[str, ...] | None, types: dict[str, str], first: str
) -> None:
    """Check that a file has the columns of the first file, with the same types; ``types`` collects them."""
    if not types:
        unknown = [name for name in columns or () if name not in present]
        if unknown:
            raise ConfigurationError("columns", unknown[0], f"columns of {file}: {', '.join(present)}")
        types.update({name: kind for name, kind in present.items() if columns is None or name in columns})
    for name, kind in types.items():
        if present.get(name) != kind:
            found = f"is {present[name]}" if name in present else "is missing"
            raise ShardCorruptError(
                file,
                f"column {name!r} {found}: expected {kind}, as in {first}",
                f"column {name!r}",
                kind,
                present.get(name),
            )
    more = [] if columns else [name for name in present if name not in types]
    if more:
        raise ShardCorruptError(
            file,
            f"column {more[0]!r} is not in {first}; choose the columns that all files have with columns=[...]",
            f"column {more[0]!r}",
        )


def _joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges, with those that are close to each other as one."""
    first, last = -1, -1
    for start, stop in ranges:
        if first >= 0 and start - last <= _LARGEST_GAP_BYTES:
            last = max(last, stop)
            continue
        if first >= 0:
            yield first, last
        first, last = start, stop
    if first >= 0:
        yield first, last


def _digest(ranges: tuple[tuple[int, int], ...]) -> str:
    return blake2s(repr(ranges).encode(), digest_size=5).hexdigest()


def _num_leaves(kind: Any) -> int:
    """Return the number of column chunks that hold a column of a type."""
    if isinstance(kind, _arrow.BaseExtensionType):
        return _num_leaves(kind.storage_type)
    if _arrow.types.is_dictionary(kind):
        return 1
    return sum(_num_leaves(kind.field(index).type) for index in range(kind.num_fields)) if kind.num_fields else 1


def _size_bytes(kind: Any) -> int | None:
    """Return the size of every value of a type; None if it varies."""
    if _arrow.types.is_fixed_size_list(kind):
        item_bytes = _size_bytes(kind.value_type)
        return None if item_bytes is None else item_bytes * kind.list_size
    if _arrow.types.is_primitive(kind) and kind.bit_width >= 8:
        return kind.bit_width // 8
    return None
