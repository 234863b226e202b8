"""Group the members of a tar archive into samples, as webdataset does: a key, and a column for each extension."""

import logging
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.archives.tar_headers import TarMember, members_of
from fkat_data.errors import FkatDataError, ShardCorruptError
from fkat_data.interruption import genuine

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
            ConfigurationError: A package is missing.
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
                place = f"row {row}, member {f'{self.keys[row]}.{column}'!r} at byte {start:,}"
                raise ShardCorruptError(archive, f"{place}: {type(error).__name__}: {error}", place) from error
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
            ConfigurationError: The archive is compressed.
            ShardCorruptError: What ``members_of`` finds; or a sample has two members with one extension, its members
                are not side by side, or there are more than 256 extensions.
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
                    raise _refused(archive, member, f"other members stand between those of {key!r}: sort the members")
                keys[key] = None
                present.clear()
                last = key
            if extension in (KEY, URL):
                raise _refused(archive, member, f"the extension {extension!r} is the name of another column")
            if extension in present:
                raise _refused(archive, member, f"the sample {key!r} has two members with the extension {extension!r}")
            present.add(extension)
            column = number_of.setdefault(extension, len(number_of))
            if column >= _MOST_COLUMNS:
                reason = f"more than {_MOST_COLUMNS} extensions: the key ends at the first dot of a name"
                raise _refused(archive, member, reason)
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
    place = np.empty(len(columns), np.int64)
    place[[number_of[name] for name in columns]] = np.arange(len(columns))
    rows, numbers = np.frombuffer(cells, np.int64).reshape(-1, 2).T if cells else np.empty((2, 0), np.int64)
    tables = np.full((num_samples, len(columns)), -1, np.int64), np.zeros((num_samples, len(columns)), np.int64)
    for table, values in zip(tables, (starts, sizes), strict=True):
        table[rows, place[numbers]] = np.array(values, np.int64)
    return tuple(columns), *tables


def _refused(archive: str, member: TarMember, reason: str) -> ShardCorruptError:
    place = f"member {member.name[:200]!r} at byte {member.offset:,}"
    return ShardCorruptError(archive, f"{place}: {reason}", place)
