"""Locations that name files instead of a directory: one file, or a pattern of files."""

import re
from typing import NamedTuple

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine
from fkat_data.streaming.formats.file_formats import FILE_SUFFIXES, format_of_name

#: For messages: the suffixes of all formats.
KNOWN_SUFFIXES = ", ".join(suffix for suffixes in FILE_SUFFIXES.values() for suffix in suffixes)

#: For messages: why a directory is no dataset.
NO_DATASET = (
    f"no such file, and no files of a format that needs no index ({KNOWN_SUFFIXES}); `fkat-data convert` makes a "
    "dataset of JSON lines and of other tables"
)

#: The files of a dataset with an index.
_OF_DATASET = re.compile(r"index\.json|shard\.\d+\..+")
_WILDCARD = re.compile(r"[*?\[]")
#: The schemes of web servers, in whose URLs a question mark begins the query.
_WEB = ("http", "https")


class FilePattern(NamedTuple):
    """Which files of a directory a stream consists of.

    Attributes:
        text: The pattern, relative to the directory, as the shell's: ``*``, ``?``, ``[...]``, and ``**`` for folders
            at any depth; "": all files of a known format, at any depth. Without a wildcard, a file, or all files below
            a folder of that name.
    """

    text: str

    @property
    def prefix(self) -> str:
        """What the names of all files begin with."""
        found = _WILDCARD.search(self.text)
        return self.text[: found.start()] if found else self.text

    def matches(self, name: str) -> bool:
        """Return whether a file is one of them. A wildcard matches no name that begins with a dot or an underscore.

        Args:
            name: The file, relative to the directory.

        Raises:
            ConfigurationError: The pattern has an invalid range of letters.
        """
        if format_of_name(name) is None:
            return False
        if not self.text:
            return _FOLDERS_AND_FILE.fullmatch(name) is not None
        if not _WILDCARD.search(self.text):
            below = name.removeprefix(f"{self.text}/")
            return name == self.text or (below != name and _FOLDERS_AND_FILE.fullmatch(below) is not None)
        return _compiled(self.text).fullmatch(name) is not None


def no_stream(name: str) -> str:
    """Return why a file is no stream, and what to do, for messages.

    Args:
        name: The name of a file that exists.
    """
    if _OF_DATASET.fullmatch(name):
        return "a file of a dataset: name its directory, which has the index.json"
    return (
        f"a file. A stream is a directory of shards with an index.json, or files that need no index ({KNOWN_SUFFIXES}). "
        "`fkat-data convert` makes shards of JSON lines and of other tables, MDSWriter of any samples; a Dataset of "
        "your own reads the file as it is"
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
    if format_of_name(path) is None:
        return None
    found = _WILDCARD.search(path)
    fixed = path[: found.start()] if found else path
    directory, slash, _ = fixed.rpartition("/")
    pattern = path[len(directory) + len(slash) :]
    if separator:
        return (f"{scheme}://{directory}{query}", FilePattern(pattern)) if directory else None
    return directory or slash or ".", FilePattern(pattern)


_SHOWN = r"(?![._])"
_FOLDERS_AND_FILE = re.compile(rf"(?:{_SHOWN}[^/]+/)*{_SHOWN}[^/]+")


def _compiled(pattern: str) -> re.Pattern[str]:
    parts: list[str] = []
    components = pattern.split("/")
    for number, component in enumerate(components):
        is_last = number == len(components) - 1
        if component == "**":
            parts.append(rf"(?:{_SHOWN}[^/]+/)*" + (rf"{_SHOWN}[^/]+" if is_last else ""))
        else:
            parts.append(_component(component) + ("" if is_last else "/"))
    try:
        return re.compile("".join(parts))
    except genuine(re.error) as error:
        raise ConfigurationError("remote", pattern, f"a pattern of files as the shell's ({error})") from None


def _component(text: str) -> str:
    found = [_SHOWN] if _WILDCARD.match(text) else []
    position = 0
    while position < len(text):
        letter = text[position]
        end = text.find("]", position + 2) if letter == "[" else -1
        if letter == "*":
            found.append("[^/]*")
        elif letter == "?":
            found.append("[^/]")
        elif end > 0:
            # These letters would mean something to ``re`` that they do not mean to a shell.
            inside = re.sub(r"([\\\[&~|])", r"\\\1", text[position + 1 : end])
            found.append(f"[{'^/' + inside[1:] if inside[0] in '!^' else inside}]")
            position = end
        else:
            found.append(re.escape(letter))
        position += 1
    return "".join(found)
