"""Say where files are: a path of this machine, or a URL."""

import json
import logging
import os
import re
import secrets
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from hashlib import blake2s
from inspect import signature
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.interruption import genuine, suppress

_logger = logging.getLogger(__name__)

#: The beginning of a URL without ``//``, such as ``dbfs:/Volumes/data``, which would otherwise pass for a path.
_HALF_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield the path of a file to write beside another one, which it replaces as a whole; an error removes it."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_url(location: str) -> bool:
    """Return whether a location is a URL, such as ``s3://bucket/data``, instead of a path."""
    return "://" in location


def path_of(location: str) -> Path | None:
    """Return the path of a location on this machine, which may be a ``file://`` URL; None for any other URL.

    The path of a URL is meant as it is written if it exists so, and percent-encoded otherwise.
    """
    if not is_url(location):
        return Path(location)
    scheme, _, rest = location.partition("://")
    host, slash, rest = rest.partition("/")
    if scheme.lower() != "file" or host.lower() not in ("", "localhost"):
        return None
    path = Path(slash + rest or "/")
    return path if "%" not in rest or os.path.lexists(path) else Path(unquote(str(path)))


def is_chain(location: str) -> bool:
    """Return whether a location is a chain of fsspec's file systems, such as ``zip://a::s3://b``, and no name with ``::``.

    What exists here is a name, and so is what follows a file system that takes no other one.
    """
    first, mark, _ = location.partition("::")
    if not mark or location.startswith("/") or ("://" not in first and os.path.lexists(location)):
        return False
    # Imported here, because only such locations need it and a worker must start quickly.
    import fsspec  # noqa: PLC0415 - see above

    try:
        kind: Any = cast("Any", fsspec).get_filesystem_class(first.partition("://")[0])
    except genuine(ValueError, ImportError):
        return True  # fsspec says what is wrong
    return any("target_protocol" in signature(base.__init__).parameters for base in kind.__mro__)


def file_system_of(uri: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system of a URI, and the name of the file in it. Raises what fsspec raises.

    Args:
        uri: A URI that fsspec supports, or a chain of them.
        storage_options: The options of the file system.
    """
    import fsspec  # noqa: PLC0415 - as above

    if "::" not in uri or is_chain(uri):
        return cast("Any", fsspec).core.url_to_fs(uri, **storage_options)
    kind: Any = cast("Any", fsspec).get_filesystem_class(uri.partition("://")[0] if is_url(uri) else "file")
    return kind(**{**kind._get_kwargs_from_urls(uri), **storage_options}), kind._strip_protocol(uri)  # noqa: SLF001 - as fsspec does


def resolved(argument: str, location: object, expected: str = "the path or the URL of a directory") -> str:
    """Return a location that means the same after ``chdir``: a path as an absolute one, a URL unchanged.

    A leading ``~`` or ``~user`` stands for the home directory. Symbolic links and ``..`` stay.

    Args:
        argument: Name of the caller's argument, for messages.
        location: A path or a URL.
        expected: What the argument must be.

    Raises:
        ConfigurationError: The location is empty, neither a string nor a path, has a zero in it, or is a URL without
            ``//``.
    """
    text = os.fspath(cast("str | os.PathLike[str]", location)) if isinstance(location, (str, os.PathLike)) else ""
    if not text or not isinstance(cast("object", text), str) or "\0" in text:
        raise ConfigurationError(argument, cast("object", location), expected)
    if is_url(text):
        return text
    if _HALF_URL.match(text):
        scheme, _, rest = text.partition(":")
        advice = f"{expected}: the path {rest} if it is mounted there, or a URL such as {scheme}://… (a path: ./{text})"
        raise ConfigurationError(argument, text, advice)
    path = str(Path(os.path.expanduser(text)).absolute())  # noqa: PTH111 - pathlib raises if it does not know the user
    # A slash at the end says that it is a directory.
    return f"{path}/" if text.endswith("/") and path != "/" else path


def machine_path(argument: str, location: object, expected: str) -> Path:
    """Return a location on this machine as an absolute path.

    Args:
        argument: Name of the caller's argument, for messages.
        location: A path, or a ``file://`` URL.
        expected: What the argument must be.

    Raises:
        ConfigurationError: The location is a URL of another kind, or what ``resolved`` refuses.
    """
    path = path_of(resolved(argument, location, expected))
    if path is None:
        raise ConfigurationError(argument, location, f"{expected}, and no URL")
    return path


def user_cache_file(kind: str, location: str) -> Path:
    """Return the path of the cache file of what is known about a location: below the user's directory of caches.

    Args:
        kind: What is cached, a folder's name.
        location: What it is about.
    """
    folder = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")  # noqa: PTH111 - as above
    if folder.startswith("~"):
        folder = "/nonexistent"  # the user has no home: nothing is cached, because no user can make this folder
    name = blake2s(location.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return Path(folder) / "fkat_data" / kind / f"{name}.json"


#: A temporary file that is older was left by a process that died.
_LEFT_S = 3600.0


def load_cached(path: Path, version: int) -> tuple[dict[str, Any], Any] | None:
    """Return the facts and the content that ``save_cached`` has written; None if there is nothing that is whole."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        facts = json.loads(head)
        if facts["version"] != version or facts["digest"] != _digest(body):
            raise ValueError("it is of another version, or torn")
        return facts, json.loads(body)
    except genuine(FileNotFoundError):
        return None
    except genuine(OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _logger.warning("the file %s cannot be used, and its content is computed again: %s", path, error)
        return None


def save_cached(path: Path, version: int, content: Any, **facts: str) -> None:
    """Keep what can be found out again, as JSON, in a file that is whole or not there; no error if that fails.

    Args:
        path: The file.
        version: Of the content's form: no other is loaded.
        content: What to keep.
        **facts: What to keep beside it, in the file's first line.
    """
    body = json.dumps(content, separators=(",", ":")).encode()
    head = json.dumps({"version": version, **facts, "digest": _digest(body)}).encode()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in path.parent.glob(f"{path.name}.*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    left.unlink()
        with replacing(path) as temporary, temporary.open("xb") as file:
            file.writelines((head, b"\n", body))
            file.flush()
            os.fsync(file.fileno())
    except genuine(OSError) as error:
        _logger.info("the file %s cannot be written, so its content will be computed again: %s", path, error)


def _digest(body: bytes) -> str:
    return blake2s(body, digest_size=16).hexdigest()


def found_below(file_system: Any, root: str, maxdepth: int | None = None) -> dict[str, dict[str, Any]]:
    """Return what ``find`` of a file system of fsspec finds, with details; a folder that cannot be listed is an error.

    By itself, fsspec leaves out such a folder in silence, whatever the store has answered.

    Args:
        file_system: The file system.
        root: The folder in it, or a file.
        maxdepth: How many folders deep; None: all.

    Raises:
        Exception: What listing a folder raises, but for one below that is gone by then.
    """
    from fsspec.asyn import AsyncFileSystem  # noqa: PLC0415 - only remote locations need it
    from fsspec.spec import AbstractFileSystem  # noqa: PLC0415 - as above

    kind, of_async = cast("tuple[Any, Any]", (type(file_system), AsyncFileSystem))
    if issubclass(kind, of_async):
        # Others override them.
        goes_by_folders = kind._find is of_async._find and kind._walk is of_async._walk  # noqa: SLF001 - see above
    else:
        find, walk = (getattr(getattr(file_system, name), "__func__", None) for name in ("find", "walk"))
        goes_by_folders = (find, walk) == (AbstractFileSystem.find, AbstractFileSystem.walk)
    if not goes_by_folders:
        # Some have no maxdepth.
        return file_system.find(root, detail=True, **({} if maxdepth is None else {"maxdepth": maxdepth}))
    found: dict[str, dict[str, Any]] = {}
    # The page of a web server's folder has a slash at the end.
    is_web = "http" in cast("tuple[str, ...]", kind.protocol)
    folders = [(str(root) if is_web else str(root).rstrip("/"), 1)]
    while folders:
        folder, depth = folders.pop()
        try:
            listing: list[dict[str, Any]] = file_system.ls(folder, detail=True)
        except genuine(FileNotFoundError, NotADirectoryError):
            if depth > 1:
                continue
            if not file_system.isfile(folder):
                raise
            listing = [file_system.info(folder)]
        for entry in listing:
            name = str(entry["name"]).rstrip("/")
            if entry["type"] != "directory":
                found[entry["name"]] = entry
            elif name != folder.rstrip("/") and depth != maxdepth:
                folders.append((entry["name"] if is_web else name, depth + 1))
    return dict(sorted(found.items()))
