"""The part of a stream's location that names files: a pattern, relative to a directory."""

import re
from collections.abc import Collection
from glob import escape
from typing import NamedTuple
from urllib.parse import unquote

from fkat_data.files.formats import LISTED_SUFFIXES, listed_format
from fkat_data.storage.folders import is_shown
from fkat_data.storage.patterns import compiled, literal_where, may_be_above, unescaped, wildcard_at

#: For messages: why a directory is no dataset.
NO_DATASET = (
    f"no such file, and no files of a format that needs no index ({LISTED_SUFFIXES}); `fkat-data convert` makes a "
    "dataset of JSON lines, of other tables and of folders of files, and fkat_data.datasets.JsonDataset reads JSON lines "
    "as they are"
)

#: The files of a dataset with an index.
_OF_DATASET = re.compile(r"index\.json|shard\.\d+\..+")
#: The schemes of web servers, in whose URLs a question mark begins the query.
_WEB = ("http", "https")


class FilePattern(NamedTuple):
    """A glob pattern of the files of a directory that a stream consists of.

    Attributes:
        text: The pattern, relative to the directory, as the shell's: ``*``, ``?``, ``[...]``, and ``**`` for folders
            at any depth; "": all files of a known format, at any depth. Without a wildcard, a file, or all files below
            a folder of that name. ``[*]``, ``[?]`` and ``[[]`` are no wildcards: they stand for what they enclose.
    """

    text: str

    @property
    def name(self) -> str | None:
        """The file or the folder that is meant; None if there is a wildcard."""
        return unescaped(self.text) if wildcard_at(self.text) is None else None

    @property
    def prefix(self) -> str:
        """The prefix that the names of all files share."""
        return unescaped(self.text[: wildcard_at(self.text)])

    def among(self, names: Collection[str]) -> "FilePattern":
        """Return the pattern without the wildcards that are none, since there are files whose names have them.

        Args:
            names: The files of the directory that begin with ``prefix``.
        """

        def exists(part: str) -> bool:
            return any(name == part or name.startswith(f"{part}/") for name in names)

        return FilePattern(literal_where(self.text, exists))

    def may_be_in(self, folder: str) -> bool:
        """Return whether files in a folder, or in one below it, may be some of them."""
        return not self.text or self.name is not None or may_be_above(folder, self.text)

    def matches(self, name: str) -> bool:
        """Return whether a file is one of them. A wildcard matches no name that begins with a dot or an underscore.

        Args:
            name: The file, relative to the directory.

        Raises:
            ConfigurationError: The pattern has an invalid range of letters.
        """
        if listed_format(name) is None:
            return False
        if not self.text:
            return is_shown(name)
        if self.name is not None:
            below = name.removeprefix(f"{self.name}/")
            return name == self.name or (below != name and is_shown(below))
        return compiled(self.text).fullmatch(name) is not None


def no_stream(name: str) -> str:
    """Return why a file is no stream, and what to do, for messages.

    Args:
        name: The name of a file that exists.
    """
    if _OF_DATASET.fullmatch(name):
        return "a file of a dataset: name its directory, which has the index.json"
    return (
        f"a file. A stream is a directory of shards with an index.json, or files that need no index ({LISTED_SUFFIXES}). "
        "`fkat-data convert` makes shards of JSON lines and of other tables, MDSWriter of any samples; "
        "fkat_data.datasets.JsonDataset reads JSON lines as they are, and a Dataset of your own any file"
    )


def split_name(location: str) -> tuple[str, str]:
    """Return the directory and the last name of a location; "" for either one that it does not have."""
    scheme, separator, path, query = _parts(location)
    directory, _, name = path.rstrip("/").rpartition("/")
    return (f"{scheme}{separator}{directory}{query}" if directory else ""), name


def _parts(location: str) -> tuple[str, str, str, str]:
    """Return the scheme, ``://``, the path and the query; "" for what a location does not have."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return "", "", location, ""
    path, mark, query = rest.partition("?") if scheme in _WEB else (rest, "", "")
    return scheme, separator, path, mark + query


def split_location(location: str) -> tuple[str, FilePattern] | None:
    """Return the directory and the pattern of a location that names files; None if it names a directory.

    A location names files if it ends with the suffix of a format that needs no index, such as ``.parquet``. A slash at
    its end makes it a directory.
    """
    scheme, separator, path, query = _parts(location)
    if listed_format(path) is None:
        return None
    if scheme in _WEB:
        # A web server lists nothing: there are no patterns. Its client percent-encodes the name of a file.
        directory, slash, name = path.rpartition("/")
        path = f"{escape(unescaped(directory))}{slash}{escape(unquote(unescaped(name)))}"
    directory, slash, _ = path[: wildcard_at(path)].rpartition("/")
    pattern = path[len(directory) + len(slash) :]
    directory = unescaped(directory)
    if separator:
        return (f"{scheme}://{directory}{query}", FilePattern(pattern)) if directory else None
    return directory or slash or ".", FilePattern(pattern)
