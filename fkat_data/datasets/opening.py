"""Open files by path or URI."""

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from fkat_data.description import place_of
from fkat_data.errors import ConfigurationError, ShardNotFoundError
from fkat_data.interruption import genuine
from fkat_data.location import path_of, resolved
from fkat_data.observe.stages import reading


def names_of(argument: str, value: object) -> list[str]:
    """Return one or more names as a list.

    Args:
        argument: Name of the argument that holds the names, for error messages.
        value: A string, or a list of strings.

    Raises:
        ConfigurationError: ``value`` is neither, is empty, or repeats a name.
    """
    names = [value] if isinstance(value, str) else value
    if (
        not isinstance(names, Sequence)
        or not names
        or not all(isinstance(name, str) for name in cast("Sequence[object]", names))
        or len(set(cast("Sequence[str]", names))) < len(cast("Sequence[str]", names))
    ):
        raise ConfigurationError(argument, value, "a string, or a non-empty list of distinct strings")
    return list(cast("Sequence[str]", names))


def locations_of(argument: str, value: object) -> list[str]:
    """Return one or more paths or URIs as a list. Paths are absolute, so that a later ``chdir`` does not matter.

    Args:
        argument: Name of the argument that holds them, for error messages.
        value: A string, or a list of strings.

    Raises:
        ConfigurationError: ``value`` is neither, is empty, or repeats a file.
    """
    expected = "the path or the URI of a file"
    names = [name if "::" in name else resolved(argument, name, expected) for name in names_of(argument, value)]
    return names_of(argument, names)


def local_path(path: str) -> str | None:
    """Return the path of a local file, or None for a URI that needs fsspec."""
    found = None if "::" in path else path_of(path)
    return None if found is None else str(found)


def shown_path(path: str) -> str:
    """Return a path as it is, and a URI without what may be secret in it, for messages."""
    return path if local_path(path) is not None else str(place_of(path))


def open_uri(uri: str, storage_options: Mapping[str, Any]) -> Any:
    """Open a file of any file system that fsspec supports, for reading bytes.

    Args:
        uri: URI such as ``s3://bucket/name``.
        storage_options: Options that fsspec passes to the file system, such as keys and endpoints.

    Raises:
        ConfigurationError: No installed file system opens ``uri``.
        ShardNotFoundError: The file does not exist.
        OSError: Any other error of the file system.
    """
    # Imported here, because only remote files need it and a worker must start quickly.
    import fsspec  # noqa: PLC0415 - see above

    try:
        file_system, name = cast("Any", fsspec).core.url_to_fs(uri, **storage_options)
    except genuine(ValueError, ImportError) as error:
        raise ConfigurationError("paths", uri, f"a URI that fsspec can open: {error}") from error
    try:
        with reading():
            return _StoreFile(file_system.open(name, "rb"))
    except genuine(FileNotFoundError) as error:
        raise not_found(uri) from error


def not_found(path: str) -> ShardNotFoundError:
    """Return the error of a file that does not exist."""
    if not set(path) & set("*?["):
        return ShardNotFoundError(path, "no such file")
    advice = "pass the list of files, or a FsShardSampler(folder, glob=...) as the shards of a loader"
    return ShardNotFoundError(path, f"no such file, and patterns are not expanded here: {advice}")


class _StoreFile:
    """A remote file whose reads count as time of the store instead of the dataset."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        with reading():
            return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
