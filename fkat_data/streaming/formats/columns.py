"""The columns that an index entry describes."""

from fkat_data.streaming.formats.encoding import EncodingError
from fkat_data.streaming.formats.encodings import encoding_of
from fkat_data.streaming.formats.entry import Column
from fkat_data.streaming.formats.fields import Fields

#: Encodings of columns in JSON lines and separated values.
TEXT_ENCODINGS = ("str", "int", "float")

_MAX_BYTES = (1 << 32) - 1


def columns_of(shard: Fields, kind: str) -> tuple[Column, ...]:
    """Return the columns of a shard in the order in which they are stored.

    Args:
        shard: The entry.
        kind: Its format.

    Raises:
        ShardCorruptError: The description is missing or invalid. The message names the field.
    """
    if kind == "json":
        columns = shard.fields("columns")
        return tuple(Column(name, columns.text(name, TEXT_ENCODINGS)) for name in columns.content)
    names, encodings = shard.texts("column_names"), shard.texts("column_encodings")
    if len(set(names)) < len(names) or not names:
        raise shard.wrong("column_names", "at least one name, without duplicates", names)
    if len(encodings) != len(names):
        raise shard.wrong("column_encodings", f"{len(names)} encodings, one for each column", encodings)
    if kind == "mds":
        return _mds_columns(shard, names, encodings)
    for number, encoding in enumerate(encodings):
        if encoding not in TEXT_ENCODINGS:
            raise shard.wrong(f"column_encodings[{number}]", f"one of {', '.join(TEXT_ENCODINGS)}", encoding)
    return tuple(map(Column, names, encodings))


def _mds_columns(shard: Fields, names: list[str], encodings: list[str]) -> tuple[Column, ...]:
    sizes = shard.listing("column_sizes")
    if len(sizes) != len(names):
        raise shard.wrong("column_sizes", f"{len(names)} sizes, one for each column", sizes)
    columns: list[Column] = []
    for number, (name, encoding, size) in enumerate(zip(names, encodings, sizes, strict=True)):
        try:
            own_size = encoding_of(encoding).size_bytes
        except EncodingError as error:
            raise shard.wrong(f"column_encodings[{number}]", str(error), encoding) from None
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _MAX_BYTES):
            raise shard.wrong(f"column_sizes[{number}]", "null or a number of bytes", size)
        # Some writers state a variable size as 0.
        if own_size is not None and size != own_size:
            raise shard.wrong(f"column_sizes[{number}]", f"{own_size}, the size of {encoding}", size)
        columns.append(Column(name, encoding, size or None))
    return tuple(columns)
