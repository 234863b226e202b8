"""List the files under a URI as shards, on any file system that fsspec supports."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from fkat_data.errors import ConfigurationError, DownloadError, FkatDataError
from fkat_data.errors.arguments import boolean, integer
from fkat_data.errors.wording import add_note, redacted_location, without_secrets
from fkat_data.runtime.interruption import genuine
from fkat_data.samplers.sequence import SequenceShardSampler, merge_uris
from fkat_data.storage.folders import data_names, files_below, marks_of_folders, say_partitions
from fkat_data.storage.location import file_system_of, found_below, is_chain, path_of
from fkat_data.storage.patterns import compiled, literal_where
from fkat_data.storage.store_errors import StoreCalls


class FsShardSampler(SequenceShardSampler):
    """The files under a URI, sorted by name, in every epoch.

    The constructor lists the files once. Under a local path, each shard is an absolute path. Under a URI, each shard
    is a URI of the same form, to be opened with the same ``storage_options``. On the local file system, links to
    files and directories are followed, unless they lead back to a directory above; one that leads nowhere is left out,
    with a warning. Directories are not shards, nor are the empty objects that represent them.

    Hidden files are skipped: any part of their path below ``uri`` starts with ``.`` or ``_``, such as ``_SUCCESS``,
    ``.part-0.crc`` or ``_temporary/part-0``; a folder ``_column=value`` of a partition is not hidden. ``glob`` includes
    one if a part of the pattern that starts with the same character matches the hidden part: ``_delta_log/*.json``. What
    is written beside data is skipped, too, unless ``glob`` ends as it does: ``*.lines`` and ``*.lengths`` of this library,
    ``*.idx`` and ``*.ds.index`` beside the files that they index, ``*.crc``, ``*_$folder$``, and files that are still
    written or fetched (``part-0.parquet.tmp``, ``*.crdownload``); ``docs/howto/files.md`` has all. On the local file system, ``lost+found`` is skipped,
    and so are folders that start with ``.`` and may not be read, with a warning.

    Args:
        uri: A directory or a file: a local path, which may be relative or start with ``~``, or a URI such as
            ``s3://bucket/folder``, ``hf://datasets/name`` or ``file:///folder``.
        glob: Pattern of files as fsspec's and the shell's: ``*``, ``?``, ``[...]``, and ``**`` for folders at any
            depth. Without a slash, it is one of a file's name, at any depth; with one, of its path below ``uri``, or
            of its whole path or URI. Case matters. What exists as it is written is meant, and is no pattern:
            ``run[1]/*.parquet`` are the files of a directory ``run[1]``, if there is one.
        recursive: Whether to list subdirectories too.
        num_uri_merge: Number of files to merge into one shard; -1: all; 0: no merging.
        storage_options: Options that fsspec passes to the file system, such as keys and endpoints.

    Raises:
        ConfigurationError: An argument is invalid, ``uri`` does not exist, no file matches, or no installed file
            system opens ``uri``.
        DownloadError: A store does not list the files.
        PermissionError: A local folder may not be read.
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
            raise ConfigurationError("uri", uri, "a non-empty path or URI")
        if glob is not None and not isinstance(glob, str):
            raise ConfigurationError("glob", glob, "a pattern such as '*.parquet'")
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise ConfigurationError("storage_options", storage_options, "a mapping")
        boolean("recursive", recursive)
        num_uri_merge = integer("num_uri_merge", num_uri_merge, minimum=-1)

        files = _files(text, recursive=recursive, storage_options=_plain(storage_options or {}))
        chosen = sorted(_chosen(files, glob or ""))
        shards = [file.shard for file in chosen]
        if not shards and glob:
            hint = "; ** stands for folders at any depth, * for no slash" if "/" in glob else ""
            expected = f"a pattern that matches at least one of the {len(files)} files under {text!r}{hint}"
            raise ConfigurationError("glob", glob, expected)
        if not shards:
            where = "under it" if recursive else "in it (recursive=False)"
            found = f"all {len(files)} {where} are hidden" if files else f"there are none {where}"
            raise ConfigurationError("uri", text, f"a directory with files that are not hidden; {found}")
        say_partitions(str(redacted_location(text)), (file.relative_path for file in chosen))
        super().__init__(merge_uris(shards, num_uri_merge))


#: What fsspec raises where it knows none for a URI, or with these options.
_NO_FILE_SYSTEM = ValueError, TypeError, ImportError, FileNotFoundError


class _File(NamedTuple):
    shard: str
    relative_path: str  # below the URI; empty if the URI is this file

    @property
    def name(self) -> str:
        return (self.relative_path or self.shard).rpartition("/")[2]


def _chosen(files: Sequence[_File], glob: str) -> list[_File]:
    pattern = literal_where(glob, partial(_is_there, files)) if glob else ""
    data = {*data_names((file.relative_path for file in files), pattern), ""}
    if not pattern:
        return [file for file in files if file.relative_path in data]
    is_of_name, is_chosen = "/" not in pattern, compiled(pattern, "glob").fullmatch
    return [
        file
        for file in files
        if file.relative_path in data
        and (is_chosen(file.name) if is_of_name else is_chosen(file.relative_path) or is_chosen(file.shard))
    ]


def _is_there(files: Sequence[_File], name: str) -> bool:
    return any(
        found == name or found.startswith(f"{name}/") for file in files for found in (file.relative_path, file.shard)
    )


def _files(uri: str, *, recursive: bool, storage_options: dict[str, Any]) -> list[_File]:
    if "://" in uri or is_chain(uri):
        return _files_of_uri(uri, recursive=recursive, storage_options=storage_options)
    # Path.resolve() would replace the names of links, and Path.absolute() keeps "..".
    root = os.path.abspath(os.path.expanduser(uri))  # noqa: PTH100, PTH111  see above
    return [_File(name, _relative_path(root, name)) for name in _local_files(root, uri, recursive=recursive)]


def _relative_path(root: str, name: str) -> str:
    return name.removeprefix(root.rstrip("/")).lstrip("/")


def _files_of_uri(uri: str, *, recursive: bool, storage_options: dict[str, Any]) -> list[_File]:
    # Imported here, because workers import this module but list nothing: they start faster without fsspec.
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  see above

    calls = StoreCalls(uri, storage_options)
    try:
        file_system, root = calls.made(
            lambda: file_system_of(uri, storage_options), has_limit=False, passing=_NO_FILE_SYSTEM
        )
    except genuine(*_NO_FILE_SYSTEM) as error:
        raise ConfigurationError("uri", without_secrets(uri), f"a URI that fsspec can open: {error}") from error
    except genuine(DownloadError) as error:
        raise _noted(error, uri)  # noqa: B904 - it says all of its cause
    if isinstance(file_system, LocalFileSystem):
        path = path_of(uri)  # what it percent-encodes, fsspec takes as it is
        root = root if path is None or not path.is_absolute() else str(path)
        names = _local_files(root, uri, recursive=recursive)
        return [_File(file_system.unstrip_protocol(name), _relative_path(root, name)) for name in names]
    prefix, suffix = _prefix_and_suffix(uri, file_system.unstrip_protocol(root))
    files: list[_File] = []
    for name in _remote_files(file_system, root, uri, calls, recursive=recursive):
        relative_path = _relative_path(root, name)
        if not name.startswith(root.rstrip("/")):  # a web page may link to another spelling of its own address
            files.append(_File(file_system.unstrip_protocol(name), relative_path))
        else:
            files.append(_File(prefix + relative_path + suffix if relative_path else uri, relative_path))
    return files


def _local_files(root: str, uri: str, *, recursive: bool) -> Sequence[str]:
    # fsspec's own listing returns links to directories as files, instead of following them.
    if not Path(root).exists():
        raise _not_found(uri, root)
    enters = None if recursive else _enters_none
    return [path for _, path in files_below(root, enters)] if Path(root).is_dir() else [root]


def _enters_none(folder: str) -> bool:
    del folder
    return False


def _remote_files(file_system: Any, root: str, uri: str, calls: StoreCalls, *, recursive: bool) -> Sequence[str]:
    def entries_now() -> dict[str, dict[str, Any]]:
        # fsspec keeps file systems for the life of the process, with their listings. List what is there now.
        file_system.invalidate_cache(root)
        found = _web_file(file_system, root) or found_below(file_system, root, None if recursive else 1)
        if not found and not file_system.exists(root):
            file_system.info(root)  # to ``exists``, a store that fails has nothing
        return found

    try:
        entries = calls.made(entries_now, has_limit=False)  # a listing of millions takes minutes
    except genuine(FileNotFoundError):
        raise _not_found(uri, root) from None
    except genuine(DownloadError) as error:
        raise _noted(error, uri)  # noqa: B904 - it says all of its cause
    marks = marks_of_folders({name: entry.get("size") for name, entry in entries.items()})
    return [name for name, entry in entries.items() if entry.get("type") != "directory" and name not in marks]


def _web_file(file_system: Any, root: str) -> dict[str, dict[str, Any]]:
    """Return a file of a web server, whose listing would be the links in it; nothing if it is a page or no web server."""
    if "http" not in file_system.protocol or root.endswith("/"):
        return {}
    found: dict[str, Any] = file_system.info(root)
    return {} if found.get("mimetype", "").startswith("text/html") else {root: found}


def _noted(error: FkatDataError, uri: str) -> FkatDataError:
    # A store's client does not say what would help.
    add_note(
        error, f"fkat_data: while listing {redacted_location(uri)!r}; storage_options takes credentials and endpoints"
    )
    return error


def _not_found(uri: str, root: str) -> ConfigurationError:
    hint = "; pass a pattern as glob" if any(character in uri for character in "*?[") else ""
    return ConfigurationError("uri", uri, f"an existing file or directory: {root!r} does not exist{hint}")


def _prefix_and_suffix(uri: str, unstripped_root: str) -> tuple[str, str]:
    """Return the parts of a file's URI before and after its path below ``uri``.

    They are taken from ``uri``, which may hold a host, an account or a branch that the file system's
    ``unstrip_protocol`` drops. In a chain, the path belongs to one link, which may be any of them:
    ``simplecache::s3://bucket/folder``, ``zip://folder::s3://bucket/all.zip``.
    """
    links = uri.split("::") if is_chain(uri) else [uri]
    protocol = unstripped_root.partition("://")[0]
    of_protocol = [link_index for link_index, link in enumerate(links) if link.partition("://")[0] == protocol]
    with_path = [link_index for link_index, link in enumerate(links) if "://" in link]
    link_index = [*of_protocol, *with_path, len(links) - 1][0]
    link = links[link_index]
    if link == protocol:
        link += "://"
    with_slash = link if link.endswith("/") else link + "/"
    return "::".join([*links[:link_index], with_slash]), "::".join(["", *links[link_index + 1 :]])


def _plain(value: Any) -> Any:
    # Hydra passes its own nested mappings and lists; clients of cloud stores accept only Python's.
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, tuple)):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return cast("Any", value)
