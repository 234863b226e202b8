"""The files under a URI as shards, of any file system that fsspec opens."""

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, cast

from fkat_data.arguments import boolean, integer
from fkat_data.errors import ConfigurationError
from fkat_data.samplers.sequence import SequenceShardSampler, merge_uris

__all__ = ["FsShardSampler"]


class FsShardSampler(SequenceShardSampler):
    """The files under a URI, sorted by their names, each epoch.

    They are listed once, in the constructor. Below a plain path a shard is an absolute path; below a URI it is a
    URI, to be opened as the given one was (and with the same ``storage_options``). Links to files and directories
    of the local file system are followed; directories are no shards, nor are the empty objects that stand for them.

    Hidden files are left out: those with a name, or in a directory with a name, that starts with ``.`` or ``_``,
    such as ``_SUCCESS``, ``.part-0.crc`` or ``_temporary/part-0``. ``glob`` brings one back if a part of the
    pattern that starts with the same character matches the hidden part: ``_delta_log/*.json``.

    Args:
        uri: A directory or one file: a local path (``~`` and relative ones too) or a URI with a protocol, such as
            ``s3://bucket/folder``, ``hf://datasets/name`` or ``file:///folder``.
        glob: A pattern for the path below ``uri``, or for the whole of it: a file that either way matches is a
            shard. ``*`` stands for any characters, ``/`` included; ``?`` and ``[...]`` for one. Case matters.
        recursive: Whether directories below ``uri`` are listed too.
        num_uri_merge: Files that are joined into one shard; -1 for all of them; 0 for none.
        storage_options: What fsspec gives to the file system: keys, endpoints.

    Raises:
        ConfigurationError: An argument is none of these; nothing is at ``uri``, or no file that matches; or no
            installed file system opens it.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        glob: str | None = None,
        recursive: bool = True,
        num_uri_merge: int = 0,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        text = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
        if not isinstance(text, str) or not text:
            raise ConfigurationError("uri", uri, "a path or URI that is not empty")
        if glob is not None and not isinstance(glob, str):
            raise ConfigurationError("glob", glob, "a pattern such as '*.parquet'")
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise ConfigurationError("storage_options", storage_options, "a mapping")
        boolean("recursive", recursive)
        num_uri_merge = integer("num_uri_merge", num_uri_merge, minimum=-1)

        files = _files(text, recursive=recursive, storage_options=_plain(storage_options or {}))
        shards = sorted(file.shard for file in files if _is_wanted(file, glob))
        if not shards and glob:
            raise ConfigurationError(
                "glob", glob, f"a pattern that matches at least one of the {len(files)} files under {text!r}"
            )
        if not shards:
            where = "under it" if recursive else "in it (recursive=False)"
            found = f"all {len(files)} {where} are hidden" if files else f"there are 0 {where}"
            raise ConfigurationError("uri", text, f"a place with files that are not hidden; {found}")
        super().__init__(merge_uris(shards, num_uri_merge))


class _File(NamedTuple):
    shard: str
    below: str  # its path below the URI; empty if the URI is this file


def _is_wanted(file: _File, glob: str | None) -> bool:
    if glob:
        path = file.below or file.shard.rpartition("/")[2]
        if not fnmatchcase(path, glob) and not fnmatchcase(file.shard, glob):
            return False
    patterns = glob.split("/") if glob else []
    return all(
        any(pattern[:1] == part[0] and fnmatchcase(part, pattern) for pattern in patterns)
        for part in file.below.split("/")
        if part.startswith((".", "_"))
    )


def _files(uri: str, *, recursive: bool, storage_options: dict[str, Any]) -> list[_File]:
    if "://" in uri or "::" in uri:
        return _opened(uri, recursive=recursive, storage_options=storage_options)
    # No Path: its resolve() follows links, whose names count here, and its absolute() keeps "..".
    root = os.path.abspath(os.path.expanduser(uri))  # noqa: PTH100, PTH111  see above
    return [_File(name, _below(root, name)) for name in _local(root, uri, recursive=recursive)]


def _below(root: str, name: str) -> str:
    return name.removeprefix(root.rstrip("/")).lstrip("/")


def _opened(uri: str, *, recursive: bool, storage_options: dict[str, Any]) -> list[_File]:
    # Here and not above: a worker imports this package and lists nothing, so it need not wait for fsspec.
    from fsspec import core  # noqa: PLC0415  see above
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  see above

    try:
        file_system, root = cast("tuple[Any, str]", core.url_to_fs(uri, **storage_options))
    except (ValueError, ImportError, FileNotFoundError) as error:
        raise ConfigurationError("uri", uri, f"a URI that fsspec can open; it says: {error}") from error
    if isinstance(file_system, LocalFileSystem):
        names = _local(root, uri, recursive=recursive)
        return [_File(file_system.unstrip_protocol(name), _below(root, name)) for name in names]
    before, after = _surroundings(uri, file_system.unstrip_protocol(root))
    files: list[_File] = []
    for name in _remote(file_system, root, uri, recursive=recursive):
        below = _below(root, name)
        if not name.startswith(root.rstrip("/")):  # a web page may link to another spelling of its own address
            files.append(_File(file_system.unstrip_protocol(name), below))
        else:
            files.append(_File(before + below + after if below else uri, below))
    return files


def _local(root: str, uri: str, *, recursive: bool) -> Sequence[str]:
    # fsspec's own listing follows no links to directories, and gives them as files.
    if not Path(root).exists():
        raise _nothing_there(uri, root)
    return list(_walk(root, recursive=recursive)) if Path(root).is_dir() else [root]


def _walk(directory: str, *, recursive: bool, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    status = Path(directory).stat()
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a link to a directory that it lies in has no end
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield entry.path
            elif recursive:
                yield from _walk(entry.path, recursive=True, above=above | {identity})


def _remote(file_system: Any, root: str, uri: str, *, recursive: bool) -> Sequence[str]:
    # File systems live as long as the process, and remember listings: what was there then is not the question.
    file_system.invalidate_cache(root)
    try:
        # Not every file system's find() knows maxdepth.
        depth = {} if recursive else {"maxdepth": 1}
        entries: dict[str, dict[str, Any]] = file_system.find(root, detail=True, **depth)
    except FileNotFoundError:
        raise _nothing_there(uri, root) from None
    if not entries and not file_system.exists(root):
        raise _nothing_there(uri, root)
    directories: set[str] = set()
    for name in entries:
        directory = name.rpartition("/")[0]
        while directory and directory not in directories:
            directories.add(directory)
            directory = directory.rpartition("/")[0]
    return [
        name
        for name, entry in entries.items()
        if entry.get("type") != "directory"
        # Object stores have no directories; tools write an empty object in place of one.
        and not (entry.get("size") == 0 and (name.endswith("/") or name in directories))
    ]


def _nothing_there(uri: str, root: str) -> ConfigurationError:
    hint = "; a pattern goes into glob" if any(character in uri for character in "*?[") else ""
    return ConfigurationError("uri", uri, f"an existing file or directory: nothing is at {root!r}{hint}")


def _surroundings(uri: str, unstripped_root: str) -> tuple[str, str]:
    """Return what a path below ``uri`` stands between in the URI of its file.

    The given text is kept: it may hold a host, an account or a branch that the file system's own
    ``unstrip_protocol`` leaves out. One link of a chain has the path, not always the last:
    ``simplecache::s3://bucket/folder``, ``zip://folder::s3://bucket/all.zip``.
    """
    links = uri.split("::")
    protocol = unstripped_root.partition("://")[0]
    of_protocol = [place for place, link in enumerate(links) if link.partition("://")[0] == protocol]
    with_path = [place for place, link in enumerate(links) if "://" in link]
    place = [*of_protocol, *with_path, len(links) - 1][0]
    link = links[place]
    if link == protocol:
        link += "://"
    before = link if link.endswith("/") else link + "/"
    return "::".join([*links[:place], before]), "::".join(["", *links[place + 1 :]])


def _plain(value: Any) -> Any:
    # Hydra gives its own mappings and lists, nested; clients of cloud stores know only Python's.
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, tuple)):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return cast("Any", value)
