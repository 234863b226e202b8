"""A sidecar: an array about a file, written once beside it, so that a thousand processes need not read the file for it.

It is a ``.npy`` file, which any program maps, with facts as JSON behind the array. Among them are the size and the time
of the file that it is about: once that file is another one, the sidecar says nothing.
"""

import json
import logging
import os
import secrets
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fkat_data.files.opening import local_path
from fkat_data.interruption import genuine

_logger = logging.getLogger(__name__)

_END = struct.Struct("<Q16s")
_MAGIC = b"fkat_data facts\n"
_VERSION = 1


class Sidecar(NamedTuple):
    """What was found out about a file.

    Attributes:
        values: The array, mapped.
        facts: What else there is to know.
    """

    values: npt.NDArray[Any]
    facts: Mapping[str, Any]


def write_sidecar(
    path: str, kind: str, values: npt.NDArray[Any], facts: Mapping[str, Any], before: os.stat_result
) -> Path:
    """Write what was found out about a file; the sidecar is there as a whole or not at all. Return its path.

    Args:
        path: The file, on this machine.
        kind: The last part of the sidecar's name.
        values: The array.
        facts: What else there is to know, as JSON holds it.
        before: What the file was when it was looked at.

    Raises:
        OSError: It cannot be written.
    """
    place = _beside(path, kind)
    temporary = place.with_name(f"{place.name}.{secrets.token_hex(8)}.tmp")
    about = {"version": _VERSION, "size_bytes": before.st_size, "time_ns": before.st_mtime_ns, **facts}
    text = json.dumps(about).encode()
    try:
        with temporary.open("wb") as file:
            np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)
            file.write(text + _END.pack(len(text), _MAGIC))
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)
    return place


def read_sidecar(path: str, kind: str) -> Sidecar | None:
    """Return what was found out about a file; None where there is no sidecar, or the file is another one since.

    Args:
        path: The file: a local path, or a URI, which has no sidecar.
        kind: The last part of the sidecar's name.
    """
    local = local_path(path)
    if local is None:
        return None
    place = _beside(path, kind)
    try:
        facts = _facts(place)
        now = os.stat(local)  # noqa: PTH116 - as everywhere in this package
        if facts["version"] > _VERSION or (facts["size_bytes"], facts["time_ns"]) != (now.st_size, now.st_mtime_ns):
            _logger.info("%s is of another %s, which is read instead", place, local)
            return None
        return Sidecar(np.load(place, mmap_mode="r", allow_pickle=False), facts)
    except genuine(FileNotFoundError):
        return None
    except genuine(OSError, ValueError, KeyError, TypeError, struct.error) as error:
        _logger.warning("%s cannot be read, and the file that it is about is read instead: %s", place, error)
        return None


def _beside(path: str, kind: str) -> Path:
    return Path(f"{local_path(path) or path}.{kind}")


def _facts(place: Path) -> dict[str, Any]:
    with place.open("rb") as file:
        file.seek(-_END.size, os.SEEK_END)
        size, magic = _END.unpack(file.read(_END.size))
        if magic != _MAGIC:
            raise ValueError("it does not end as a sidecar does")
        file.seek(-_END.size - size, os.SEEK_END)
        return cast("dict[str, Any]", json.loads(file.read(size)))
