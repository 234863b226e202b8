"""Tar files of samples, as webdataset writes them: keys, columns, decoders, and each file as a shard."""

import io
import json
import logging
import pickle
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.errors import ConfigurationError, FkatDataError, ShardCorruptError
from fkat_data.files.limits import BeyondLimitError, beyond_limit, limit_of
from fkat_data.files.mapping import mapped
from fkat_data.files.shard import (
    Column,
    DescribedFile,
    FileInfo,
    PartReader,
    ReadOptions,
    ShardEntry,
    StoredBytes,
    checked_rows,
    dicts_of,
)
from fkat_data.files.tar_headers import members_of, refused
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import required

DecoderName: TypeAlias = Literal["bytes", "image", "integer", "json", "npy", "pickle", "text", "torch"]

#: Pillow opens no other formats here: some of them start another program.
_IMAGES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM")
_AS_BYTES = "decode='bytes' gives it as it is"
#: What Pillow shows its plugins of a file.
_PREFIX_BYTES = 16
_BY_EXTENSION = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp"), "image"),
    "json": "json",
    "txt": "text",
    "cls": "integer",
    "npy": "npy",
    **dict.fromkeys(("pth", "pt"), "torch"),
    **dict.fromkeys(("pkl", "pickle", "pyd"), "pickle"),
}
#: The decoders that run code of the archive's author.
UNSAFE = frozenset({"torch", "pickle"})


def checked_decode(value: object) -> dict[str, str] | str | None:
    """Return an argument that says how to decode: one decoder for all extensions, one for each, or None.

    Raises:
        ConfigurationError: It names an unknown decoder.
    """
    given: Mapping[object, object] = cast("Any", value) if isinstance(value, Mapping) else {"": value}
    for name, decoder in given.items():
        if not isinstance(name, str) or (value is not None and decoder not in DECODERS):
            raise ConfigurationError("decode", decoder, f"a decoder or one for each extension: {', '.join(DECODERS)}")
    return cast("Any", dict(given) if isinstance(value, Mapping) else value)


def decoder_names(archive: str, columns: Sequence[str], decode: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return the name of each extension's decoder.

    Args:
        archive: The archive, for messages.
        columns: The extensions.
        decode: One decoder for all extensions, or decoders that replace those chosen by extension.

    Raises:
        ConfigurationError: No member has an extension of ``decode``.
    """
    if isinstance(decode, str):
        return dict.fromkeys(columns, decode)
    for name in decode or ():
        if name not in columns:
            raise ConfigurationError("decode", name, f"extensions in {archive}: {', '.join(columns)}")
    # Of seg.png, the last part decides.
    chosen = {name: _BY_EXTENSION.get(name.rpartition(".")[2], "bytes") for name in columns}
    return {**chosen, **(decode or {})}


def _image(content: bytes) -> Any:
    """Return a ``PIL.Image.Image``, which decodes its pixels on first use."""
    pillow = required("PIL.Image", "streaming")
    try:
        return pillow.open(io.BytesIO(content), formats=_IMAGES)
    except genuine(pillow.UnidentifiedImageError):
        if (kind := _other_image(pillow, content[:_PREFIX_BYTES])) is not None:
            reason = f"an image of the kind {kind}, where {', '.join(_IMAGES)} are decoded"
            raise BeyondLimitError(f"{reason}; {_AS_BYTES}") from None
        raise


def _other_image(pillow: Any, prefix: bytes) -> str | None:
    """Return the kind of an image, by its first bytes, that is opened nowhere here; None: they are of none."""
    pillow.init()
    for kind, (_, accepts) in pillow.OPEN.items():
        with suppress(Exception):  # plugins expect more bytes than there may be, as Pillow knows
            # Some return a text, of why they do not read it.
            if kind not in _IMAGES and accepts is not None and accepts(prefix) is True:
                return str(kind)
    return None


def _array(content: bytes) -> npt.NDArray[Any]:
    """Return a read-only array: a view of the bytes. An array of objects, which are pickles, is an error."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise BeyondLimitError(f"a NumPy file of version {version}, where (1, 0) and (2, 0) are decoded; {_AS_BYTES}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise BeyondLimitError(f"an array of Python objects, which are pickles; {_AS_BYTES}")
    # Compare first: numpy would allocate what the header declares.
    count = 1
    for length in shape:
        count *= length
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"shape {shape} of {dtype} does not fit {len(content) - file.tell()} bytes")
    flat = np.frombuffer(content, dtype, count, file.tell()) if count and dtype.itemsize else np.empty(count, dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _torch(content: bytes) -> Any:
    # Imported here: a process that reads no tensors of files starts without it.
    import torch  # noqa: PLC0415 - see above

    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)


#: The decoders by name.
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "image": _image,
    "integer": int,
    "json": json.loads,
    "npy": _array,
    "pickle": pickle.loads,
    "text": bytes.decode,
    "torch": _torch,
}


_logger = logging.getLogger(__name__)

#: The columns of a sample's key and of its archive.
KEY, URL = "__key__", "__url__"
_MOST_COLUMNS = 256
#: How many names a message shows.
_NUM_SHOWN = 3


class TarIndex(NamedTuple):
    """The samples of an archive.

    Attributes:
        keys: The key of each sample.
        columns: The extensions, sorted.
        starts: int64, shape (samples, columns): where a member's content begins; -1 if the sample has no such member.
        sizes: int64, of that shape: the sizes of the contents in bytes.
    """

    keys: list[str]
    columns: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @property
    def size_bytes(self) -> int:
        """The memory that the index takes, about."""
        return self.starts.nbytes + self.sizes.nbytes + sum(map(len, self.keys)) + 64 * len(self.keys)

    def spans(self, columns: Sequence[str], rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield where the contents of some samples' columns begin and end."""
        for column in columns:
            if column in self.columns:
                number = self.columns.index(column)
                starts, sizes = self.starts[rows, number].tolist(), self.sizes[rows, number].tolist()
                yield from ((start, start + size) for start, size in zip(starts, sizes, strict=True) if start >= 0)

    def values(
        self,
        archive: str,
        column: str,
        rows: Sequence[int],
        read: Callable[[int, int], bytes],
        decode: Callable[[bytes], Any],
    ) -> list[Any]:
        """Return the values of a column for some samples; None where a sample has no such member.

        Args:
            archive: The archive, for messages and for ``__url__``.
            column: An extension, ``__key__`` or ``__url__``.
            rows: The samples.
            read: Returns the bytes from one offset to another.
            decode: Returns the value of a member's bytes.

        Raises:
            ShardCorruptError: A member's bytes are invalid. The message names the member.
            ConfigurationError: A package is missing, or a member exceeds a limit of Python or of Pillow.
        """
        if column == KEY:
            return [self.keys[row] for row in rows]
        if column == URL:
            return [archive] * len(rows)
        if column not in self.columns:
            return [None] * len(rows)
        number = self.columns.index(column)
        starts, sizes = self.starts[rows, number].tolist(), self.sizes[rows, number].tolist()
        values: list[Any] = []
        for row, start, size in zip(rows, starts, sizes, strict=True):
            content = None if start < 0 else read(start, start + size)
            try:
                values.append(None if content is None else decode(content))
            except FkatDataError:
                raise
            except genuine(Exception) as error:
                location = f"row {row}, member {f'{self.keys[row]}.{column}'!r} at byte {start:,}"
                if limit := limit_of(error):
                    raise beyond_limit(archive, location, limit) from error
                raise ShardCorruptError(archive, f"{location}: {type(error).__name__}: {error}", location) from error
        return values

    @classmethod
    def of(cls, archive: str, read: Callable[[int, int], bytes], size_bytes: int, hop_bytes: int) -> "TarIndex":
        """Return the index of an archive, by one pass over its headers.

        A member's key is its path up to the first dot of the file's name; the rest is its extension, in lower case.
        Members of one sample stand side by side. Files without a dot, hidden files and those named ``__…__`` are no
        members of a sample, as in webdataset; a warning names them.

        Args:
            archive: The archive, for messages.
            read: Returns the bytes from one offset to another.
            size_bytes: The size of the archive.
            hop_bytes: Contents that are smaller are read; larger ones are skipped.

        Raises:
            ConfigurationError: The archive is compressed, has members that ``members_of`` refuses, two of one sample with
                one extension, members of a sample that are not side by side, or more than 256 extensions.
            ShardCorruptError: What ``members_of`` finds.
        """
        number_of: dict[str, int] = {}
        keys: dict[str, None] = {}
        left: list[str] = []
        present: set[str] = set()
        last: str | None = None
        cells, starts, sizes = array("q"), array("q"), array("q")
        for member in members_of(archive, read, size_bytes, hop_bytes):
            found = _split(member.name)
            if found is None:
                left.append(member.name)
                continue
            key, extension = found
            if key != last:
                if key in keys:
                    reason = f"of the sample {key!r}, and other members stand between: sort the members"
                    raise refused(archive, member.offset, member.name, reason, "the members of a sample side by side")
                keys[key] = None
                present.clear()
                last = key
            if extension in (KEY, URL):
                reason = f"of the extension {extension!r}, which is the name of another column"
                raise refused(archive, member.offset, member.name, reason, "other extensions")
            if extension in present:
                reason = f"the second one of the sample {key!r} with the extension {extension!r}"
                raise refused(archive, member.offset, member.name, reason, "one member for each extension of a sample")
            present.add(extension)
            column = number_of.setdefault(extension, len(number_of))
            if column >= _MOST_COLUMNS:
                reason = f"of yet another one, {extension!r}: the key ends at the first dot of a name"
                raise refused(archive, member.offset, member.name, reason, f"at most {_MOST_COLUMNS} extensions")
            cells.extend((len(keys) - 1, column))
            starts.append(member.start)
            sizes.append(member.size_bytes)
        if left:
            names = ", ".join(left[:_NUM_SHOWN])
            _logger.warning("%s: %d files are no members of a sample, such as %s", archive, len(left), names)
        return cls(list(keys), *_tables(len(keys), number_of, cells, starts, sizes))


def _split(name: str) -> tuple[str, str] | None:
    """Return the key and the extension of a member; None if it has none."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    if not stem or not extension or (stem.startswith("__") and stem.endswith("__")):
        return None
    return f"{folder}{slash}{stem}", extension.lower()


def _tables(
    num_samples: int, number_of: dict[str, int], cells: "array[int]", starts: "array[int]", sizes: "array[int]"
) -> tuple[tuple[str, ...], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the sorted columns, and where their contents begin and how large they are."""
    columns = sorted(number_of)
    position = np.empty(len(columns), np.int64)
    position[[number_of[name] for name in columns]] = np.arange(len(columns))
    rows, numbers = np.frombuffer(cells, np.int64).reshape(-1, 2).T if cells else np.empty((2, 0), np.int64)
    tables = np.full((num_samples, len(columns)), -1, np.int64), np.zeros((num_samples, len(columns)), np.int64)
    for table, values in zip(tables, (starts, sizes), strict=True):
        table[rows, position[numbers]] = np.array(values, np.int64)
    return tuple(columns), *tables


_META = (KEY, URL)


def describe(file: StoredBytes) -> dict[str, Any]:
    """Return the number of samples and the extensions of an archive, by one pass over its headers; see ``formats``.

    Raises:
        ShardCorruptError: The archive is torn or contradicts itself.
        ConfigurationError: The archive is compressed, or has members that are refused.
    """
    index = TarIndex.of(file.name, file.read, file.size_bytes, file.hop_bytes)
    return {"samples": len(index.keys), "columns": index.columns}


def entries_of(
    files: Sequence[DescribedFile], columns: tuple[str, ...] | None, _: None, *, is_in_place: bool
) -> list[ShardEntry]:
    """Return a shard for each archive that has samples; see ``formats``.

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


_HOP_BYTES = 4 << 10


class TarReader(PartReader):
    """An open tar file. Its headers are read when the first of its rows is read, and again if they were dropped since.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        options: How its rows are read.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The file's size contradicts the index.
    """

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        super().__init__(directory, entry, options)
        origin = self._origin
        self._content = mapped(self._path, FileInfo(origin.name, origin.size_bytes), options.register)
        self._key = (str(self._path), origin.size_bytes, origin.version)
        self._decoders = {
            column.name: _decoder(column.encoding, self._arrays, self._writable) for column in entry.columns
        }
        self._check_version()

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        return dicts_of(self.column_arrays(rows))

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values as a list; see ``ShardReader``."""
        chosen: list[int] = checked_rows(rows, self.num_samples).tolist()
        index = self._decoded.group(self._key, self._scanned)
        return {
            name: index.values(self._name, name, chosen, self._read, decode) for name, decode in self._decoders.items()
        }

    def close(self) -> None:
        """Release the file; see ``ShardReader``."""
        self.num_samples = 0
        self._decoded.drop(self._key)
        self._content = memoryview(b"")

    def _read(self, start: int, stop: int) -> bytes:
        return bytes(self._content[start:stop])

    def _scanned(self) -> tuple[TarIndex, int]:
        index = TarIndex.of(self._name, self._read, len(self._content), _HOP_BYTES)
        # A process that writes into the file changes what is mapped.
        self._check_version()
        if len(index.keys) != self.num_samples:
            raise self._written_again()
        return index, index.size_bytes


def _decoder(name: str, arrays: str, is_writable: bool) -> Callable[[bytes], Any]:
    decode = DECODERS[name]
    if name == "npy" and arrays == "torch":
        return lambda content: torch.from_numpy(np.array(decode(content)))
    return decode if name != "npy" or not is_writable else lambda content: decode(content).copy()
