"""A sidecar: an array about a file, written once beside it, so that a thousand processes need not read the file for it.

It is a ``.npy`` file, which any program maps, with facts as JSON behind the array. Among them are the size of the file
that it is about, and its time, or what a store calls its content: once that file is another one, the sidecar says
nothing.
"""

import json
import logging
import struct
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, DownloadError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.opening import RangedFile, local_path, shown_path
from fkat_data.runtime.interruption import genuine
from fkat_data.storage.file_identity import FileIdentity
from fkat_data.storage.location import file_system_of, is_chain, replacing

_logger = logging.getLogger(__name__)

_END = struct.Struct("<Q16s")
_MAGIC = b"fkat_data facts\n"
_VERSION = 2


class Sidecar(NamedTuple):
    """The facts about a file that its sidecar has.

    Attributes:
        values: The array; mapped where the file is on this machine.
        facts: What else there is to know.
        identity: What the file was when the sidecar was compared with it.
    """

    values: npt.NDArray[Any]
    facts: Mapping[str, Any]
    identity: FileIdentity


def write_sidecar(
    path: str,
    kind: str,
    values: npt.NDArray[Any],
    facts: Mapping[str, Any],
    before: FileIdentity,
    storage_options: Mapping[str, Any],
) -> str:
    """Write what was found out about a file; the sidecar is there as a whole or not at all. Return its path or URI.

    Args:
        path: The file: a local path, or a URI that fsspec supports.
        kind: The last part of the sidecar's name.
        values: The array.
        facts: What else there is to know, as JSON holds it.
        before: What the file was when it was looked at.
        storage_options: Options for fsspec, for a file that is not local.

    Raises:
        ConfigurationError: The file's store does not say when its content is another one, nothing can lie beside it, or
            the store does not take it.
        OSError: It cannot be written.
    """
    target = _beside(path, kind)
    if target is None:
        raise ConfigurationError("path", path, "a file that another can lie beside, not a query or a chain of URIs")
    if before.version is None:
        raise ConfigurationError("path", path, "a file of a store that says when its content is another one")
    about = {"version": _VERSION, "size_bytes": before.size_bytes, "time": before.version, **facts}
    text = json.dumps(about).encode()
    if local_path(path) is None:
        try:
            file_system, name = file_system_of(target, storage_options)
            with file_system.open(name, "wb") as file:  # a store has it as a whole, at the end
                _write(file, values, text)
        except genuine(Exception) as error:
            found = f"{type(error).__name__}: {str(error).replace(target, shown_path(target))}"
            expected = f"a file beside which this program may write another, in a store that takes writes; {found}"
            raise ConfigurationError("path", shown_path(path), expected) from error
        return target
    with replacing(Path(target)) as temporary, temporary.open("wb") as file:
        _write(file, values, text)
    return target


def read_sidecar(path: str, kind: str, storage_options: Mapping[str, Any]) -> Sidecar | None:
    """Return what was found out about a file; None where there is no sidecar, or the file is another one since.

    Args:
        path: The file: a local path, or a URI that fsspec supports.
        kind: The last part of the sidecar's name.
        storage_options: Options for fsspec, for a file that is not local.
    """
    target = _beside(path, kind)
    if target is None:
        return None
    try:
        beside = RangedFile(target, storage_options)
        facts = _facts(beside)
        now = RangedFile(path, storage_options).identity()
        if facts["version"] != _VERSION or not now.is_listed_as(facts["size_bytes"], facts["time"]):
            _logger.info("%s is of another %s, which is read instead", target, path)
            return None
        if local_path(path) is not None:
            return Sidecar(np.load(target, mmap_mode="r", allow_pickle=False), facts, now)
        return Sidecar(np.load(BytesIO(beside.read(0, beside.size_bytes)), allow_pickle=False), facts, now)
    except genuine(ShardNotFoundError):
        return None
    except genuine(OSError, ValueError, KeyError, TypeError, struct.error, ShardCorruptError, DownloadError) as error:
        # Stores call what is not there so, too, to those who may not list.
        is_refused = isinstance(error, PermissionError) or (isinstance(error, DownloadError) and error.is_refused)
        level = logging.INFO if is_refused else logging.WARNING
        _logger.log(level, "%s cannot be read, and the file that it is about is read instead: %s", target, error)
        return None


def _write(file: Any, values: npt.NDArray[Any], text: bytes) -> None:
    np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)
    file.write(text + _END.pack(len(text), _MAGIC))


def _beside(path: str, kind: str) -> str | None:
    """Return where a file's sidecar is; None: its URI does not end with its name."""
    local = local_path(path)
    if local is None and (("?" in path and path.startswith("http")) or is_chain(path)):
        return None
    return f"{local or path}.{kind}"


def _facts(beside: RangedFile) -> dict[str, Any]:
    end = beside.size_bytes - _END.size
    size, magic = _END.unpack(beside.read(max(0, end), beside.size_bytes))
    if magic != _MAGIC:
        raise ValueError("it does not end as a sidecar does")
    return cast("dict[str, Any]", json.loads(beside.read(end - size, end)))
