"""Ship the user's objects to a worker: pickle them by value if need be, and name what cannot be pickled."""

import functools
import inspect
import os
import pickle
import resource
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine, suppress
from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.definitions import dump_shipment
from fkat_data.worker.inheritance import import_paths

__all__ = ["Shipment", "find_unshippable"]

_DEEPEST = 12
_LEAST_FILE_BYTES = 1 << 20
# Where there is no O_PATH, this process must be allowed to list the folder, too.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class Shipment:
    """What the workers of a loader start with: all of them get the same, whatever the trainer changes meanwhile.

    Args:
        settings: What is sent.
        users: The user's objects in it, by the names of their arguments.

    Raises:
        ConfigurationError: Part of a user's object cannot be pickled; the error names its path of attributes. Or the
            limit of file sizes (``ulimit -f``) leaves no shared memory.
    """

    def __init__(self, settings: Any, **users: Any) -> None:
        try:
            # Microbatches come back with references to the definitions.
            payload, self._definitions = dump_shipment(settings)
        except genuine(Exception) as error:
            found = (find_unshippable(argument, value) for argument, value in users.items())
            path, culprit, reason = next(filter(None, found), (" and ".join(users), settings, error))
            raise ConfigurationError(
                path,
                culprit,
                f"something that can be sent to a worker process, but: {reason} (or multiprocessing=False)",
            ) from error
        _check_file_size_limit(len(payload))
        self.settings: int = anonymous_file()
        """A descriptor of anonymous memory: the paths to import from and the arguments, then the settings proper."""
        self.folder: int | None = None
        """A descriptor of the working directory; None if this process may not search it."""
        try:
            with os.fdopen(os.dup(self.settings), "wb") as file:
                file.write(pickle.dumps((import_paths(), sys.argv)))
                file.write(payload)
            with suppress(PermissionError):
                self.folder = os.open(".", _FOLDER)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptors. Any number of calls."""
        (settings, self.settings), (folder, self.folder) = (self.settings, -1), (self.folder, None)
        for descriptor in (settings, folder):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)


def _check_file_size_limit(payload_bytes: int) -> None:
    """Refuse to start workers under a limit that leaves them no shared memory: it consists of anonymous files."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    needed_bytes = payload_bytes + _LEAST_FILE_BYTES
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < needed_bytes:
        raise ConfigurationError(
            "ulimit -f",
            f"{limit_bytes:,} bytes",
            f"at least {needed_bytes:,} bytes, as the limit of file sizes counts for shared memory "
            "(or multiprocessing=False)",
        )


def find_unshippable(path: str, value: Any) -> tuple[str, Any, Exception] | None:
    """Return the innermost part of ``value`` that cannot be pickled: its path, itself, the error; None if all can."""
    return _find(path, value, set(), 0)


def _find(path: str, value: Any, seen: set[int], depth: int) -> tuple[str, Any, Exception] | None:
    try:
        dump_shipment(value)
    except genuine(Exception) as error:
        # Any error in pickling is what is looked for.
        if id(value) not in seen and depth < _DEEPEST:
            seen.add(id(value))
            for part_path, part in _parts(path, value):
                found = _find(part_path, part, seen, depth + 1)
                if found is not None:
                    return found
        return path, value, error
    return None


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickling ``value`` looks into, with the path that leads there."""
    match value:
        case Mapping():
            for key, item in cast("Mapping[Any, Any]", value).items():
                yield f"{path}[{key!r}]", item
        case list() | tuple() | set() | frozenset():
            for index, item in enumerate(cast("list[Any]", value)):
                yield f"{path}[{index}]", item
        case types.FunctionType():
            yield from _parts_of_function(path, value)
        case types.MethodType():
            yield f"{path}.__self__", value.__self__
        case functools.partial():
            partial = cast("functools.partial[Any]", value)
            yield f"{path}.func", partial.func
            yield f"{path}.args", partial.args
            yield f"{path}.keywords", partial.keywords
        case _:
            for name, item in getattr(value, "__dict__", {}).items():
                yield f"{path}.{name}", item
            for name, member in inspect.getmembers_static(type(cast("object", value)), inspect.ismemberdescriptor):
                with suppress(AttributeError):  # a slot that nothing was put into
                    yield f"{path}.{name}", member.__get__(value)


def _parts_of_function(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a cell that was never filled
            yield f"{path}.<closure {name}>", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"{path}.<global {name}>", function.__globals__[name]
