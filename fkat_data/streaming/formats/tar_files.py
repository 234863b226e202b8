"""The index of webdataset's tar files, made from the headers of their members: each file is a shard."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fkat_data.archives.member_decoding import decoder_names
from fkat_data.archives.tar_samples import KEY, URL, TarIndex
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.formats.entry import Column, ShardEntry
from fkat_data.streaming.formats.file_formats import DescribedFile, StoredBytes

_META = (KEY, URL)


def describe(file: StoredBytes) -> dict[str, Any]:
    """Return the number of samples and the extensions of an archive, by one pass over its headers; see ``FileFormat``.

    Raises:
        ShardCorruptError: The archive is torn, contradicts itself, or has members that are refused.
        ConfigurationError: The archive is compressed.
    """
    index = TarIndex.of(file.name, file.read, file.size_bytes, file.hop_bytes)
    return {"samples": len(index.keys), "columns": index.columns}


def entries_of(
    files: Sequence[DescribedFile], columns: tuple[str, ...] | None, *, is_in_place: bool
) -> list[ShardEntry]:
    """Return a shard for each archive that has samples; see ``FileFormat``.

    The columns are the key and the extensions of all archives. A sample without such a member has None there.
    """
    extensions = sorted({name for file in files for name in file.description["columns"]})
    chosen = (KEY, *extensions) if columns is None else columns
    for name in chosen:
        if name not in (*_META, *extensions):
            location = files[0].name if len(files) == 1 else f"{files[0].name} and the files beside it"
            raise ConfigurationError("columns", name, f"columns of {location}: {', '.join((*_META, *extensions))}")
    decoders = decoder_names("", extensions, None)
    described = tuple(Column(name, decoders.get(name, "text")) for name in chosen)
    return [
        ShardEntry(
            "tar",
            file.description["samples"],
            described,
            file.info("whole", ((0, file.size_bytes),), is_in_place=is_in_place),
        )
        for file in files
        if file.description["samples"]
    ]


def with_decoders(entries: Sequence[ShardEntry], decode: Mapping[str, str] | str) -> list[ShardEntry]:
    """Return shards whose members are decoded as the caller says.

    Args:
        entries: The shards of a stream.
        decode: A decoder for all extensions, or decoders for some.

    Raises:
        ConfigurationError: The shards are not tar files, or no member has such an extension.
    """
    first = entries[0]
    if first.format != "tar":
        raise ConfigurationError("decode", decode, f"None: {first.name} is {first.format}, and no tar file")
    extensions = [column.name for column in first.columns if column.name not in _META]
    decoders = decoder_names(first.name, extensions, decode)
    columns = tuple(replace(column, encoding=decoders.get(column.name, column.encoding)) for column in first.columns)
    return [replace(entry, columns=columns) for entry in entries]
