"""Shipments of the user's objects to workers: pickled by value if need be, with errors that name what cannot be."""

import functools
import inspect
import io
import os
import pickle
import resource
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.buffers import BufferTable
from fkat_data.transport.definitions import ShipmentPickler, dump_shipment, is_definition, write_shipment
from fkat_data.transport.released import digest_of_pickle, released_digest
from fkat_data.worker.process.inherited_environment import import_paths

#: An object within objects within objects is named by the first and the last of them.
_MOST_NAMES = 16
_Name: TypeAlias = tuple[str, str]
"""How a part is called, and what follows after the names of its own parts."""
_LEAST_FILE_BYTES = 1 << 20
_IMPORTED = {"cloudpickle", "fkat_data", "numpy", "torch", "__main__", "__mp_main__", *sys.stdlib_module_names}
_Dumped = TypeVar("_Dumped")
# Where there is no O_PATH, this process must be allowed to list the folder, too.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class Shipment:
    """The pickled settings of a loader's workers: all of them get the same, whatever the trainer changes meanwhile.

    Args:
        settings: What is sent.
        users: The user's objects in it, by the names of their arguments.
        instead: The argument of the user's, with its value, with which nothing has to be sent.

    Raises:
        ConfigurationError: Part of a user's object cannot be pickled; the error names the attributes and globals that
            lead to it. Or the limit of file sizes (``ulimit -f``) leaves no shared memory.
    """

    hazard: str = ""
    """What may hold up a worker that starts with it: nothing."""

    def __init__(self, settings: Any, users: Mapping[str, Any], instead: str) -> None:
        _check_file_size_limit(settings, users, instead)
        self._buffers = BufferTable()
        self.settings: int = anonymous_file()
        """A descriptor of anonymous memory: the paths to import from and the arguments, then the settings proper."""
        self.folder: int | None = None
        """A descriptor of the working directory; None if this process may not search it."""
        try:
            with os.fdopen(os.dup(self.settings), "wb") as file:
                file.write(pickle.dumps((import_paths(), sys.argv)))
                self._start = file.tell()
                # Microbatches come back with references to the definitions.
                write = functools.partial(write_shipment, settings, file, self._buffers)
                self._definitions, modules = _named_errors(write, settings, users, instead)
            self.modules: frozenset[str] = frozenset(
                name for name in modules if name.partition(".")[0] not in _IMPORTED
            )
            """The modules that it names, without those that the template has, or imports in no time."""
            with suppress(PermissionError):
                self.folder = os.open(".", _FOLDER)
        except BaseException:
            self.close()
            raise

    def digest(self) -> bytes:
        """Return what tells whether another shipment has the same settings."""
        return digest_of_pickle(self.settings, self._start)

    def released_digest(self) -> bytes:
        """Return the digest of a shipment that was released, as only the loader's parent needs it; empty: it is there."""
        return released_digest(self.settings)

    def close(self) -> None:
        """Close the descriptors. Any number of calls."""
        self._buffers.close()
        (settings, self.settings), (folder, self.folder) = (self.settings, -1), (self.folder, None)
        for descriptor in (settings, folder):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)


def shipped(settings: Any, users: Mapping[str, Any], instead: str) -> tuple[bytes, list[Any]]:
    """Pickle what the workers of a loader start with, as ``dump_shipment`` does.

    Args:
        settings: What is sent.
        users: The user's objects in it, by the names of their arguments.
        instead: The argument of the user's, with its value, with which nothing has to be sent.

    Raises:
        ConfigurationError: Part of a user's object cannot be pickled.
    """
    return _named_errors(lambda: dump_shipment(settings), settings, users, instead)


def _named_errors(dump: Callable[[], _Dumped], settings: Any, users: Mapping[str, Any], instead: str) -> _Dumped:
    """Return what a function returns that pickles the settings; its errors name what cannot be pickled.

    Raises:
        ConfigurationError: Part of a user's object cannot be pickled.
        OSError: There is no memory to write to.
    """
    try:
        return dump()
    except genuine(Exception) as error:
        found = (_find_unshippable(argument, value, error) for argument, value in users.items())
        culprit_of = next(filter(None, found), None)
        if culprit_of is None and isinstance(error, OSError):
            raise
        path, culprit, reason = culprit_of or (" and ".join(users), settings, error)
        expected = f"something that can be sent to a worker process, but: {reason} (or {instead})"
        raise ConfigurationError(path, culprit, expected) from error


def _check_file_size_limit(settings: Any, users: Mapping[str, Any], instead: str) -> None:
    """Refuse to start workers under a limit that leaves them no shared memory: it consists of anonymous files."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes == resource.RLIM_INFINITY:
        return
    needed_bytes = len(shipped(settings, users, instead)[0]) + _LEAST_FILE_BYTES
    if limit_bytes < needed_bytes:
        raise ConfigurationError(
            "ulimit -f",
            f"{limit_bytes:,} bytes",
            f"at least {needed_bytes:,} bytes, as the limit of file sizes counts for shared memory (or {instead})",
        )


def _find_unshippable(argument: str, value: Any, error: Exception) -> tuple[str, Any, Exception] | None:
    """Return what of ``value`` cannot be pickled, where ``error`` says that something cannot; None if all of it can.

    Returns:
        The way to it in words, from ``argument`` on; the part itself; the error of pickling it.
    """
    tracer = _Tracer()
    try:
        tracer.dump(value)
    except genuine(Exception) as found:
        if isinstance(found, RecursionError):
            if not isinstance(error.__cause__, RecursionError):
                return None  # this pickler's own: it does not go as deep as the one in C
            found = error
        # Any other error is what is looked for.
        return _in_words(argument, tracer.way), tracer.way[-1], found
    finally:
        tracer.close()
    return None


class _Nowhere(io.RawIOBase):
    def write(self, data: Any, /) -> int:
        return memoryview(data).nbytes


class _Tracer(pickle._Pickler):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the pickler in C does not say where it is
    """A pickler without output that keeps the way from the whole to what it is pickling."""

    dispatch_table = ShipmentPickler.dispatch_table

    def __init__(self) -> None:
        self._buffers = BufferTable()
        super().__init__(_Nowhere(), protocol=5, buffer_callback=self._buffers)
        self._shipment = ShipmentPickler(_Nowhere())
        self.way: list[Any] = []

    def close(self) -> None:
        """Close what it has opened."""
        self._buffers.close()

    def reducer_override(self, obj: Any) -> Any:
        # The pickler in C does not ask for plain values.
        is_plain = type(obj) in self.dispatch and not is_definition(obj)
        return NotImplemented if is_plain else self._shipment.reducer_override(obj)

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        self.way.append(obj)
        # Type checkers take it for the pickler in C.
        super().save(obj, save_persistent_id)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        self.way.pop()  # it stays where this fails


def _in_words(argument: str, way: Sequence[Any]) -> str:
    """Return the way from an argument in words, such as ``dataset, global 'handle.lock' of function 'load'``."""
    names: list[_Name] = []
    start, is_state = 0, False
    while start < len(way) - 1:
        named = {id(part): name for name, part in _parts(way[start], is_state=is_state)}
        # Between an object and its parts lies what pickling makes of it, which has no name: tuples, and its state.
        found = next((index for index in range(start + 1, len(way)) if id(way[index]) in named), None)
        if found is not None:
            names.append(named[id(way[found])])
        is_state = found is None
        start = start + 1 if found is None else found
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES // 2 : -_MOST_NAMES // 2] = [(" … ", "")]
    words, ending = argument, ""
    for name, own_ending in names:
        words, ending = (words + ending + name, own_ending) if own_ending else (words + name, ending)
    return words + ending


def _parts(value: Any, *, is_state: bool) -> Iterator[tuple[_Name, Any]]:
    """Yield what pickling looks into, with the name by which a user finds it there.

    Args:
        value: The whole.
        is_state: Whether pickling has made it of an object: its keys are the object's attributes.
    """
    match value:
        case dict():
            for key, item in cast("dict[Any, Any]", value).items():
                yield (f".{key}" if is_state else f"[{key!r}]", ""), item
        case list() | tuple() | set() | frozenset() if not is_state:
            for index, item in enumerate(cast("list[Any]", value)):
                yield (f"[{index}]", ""), item
        case types.FunctionType():
            yield from _parts_of_function(value)
        case type():
            for name, item in vars(value).items():
                # Functions are named by what is found in them.
                is_function = inspect.isroutine(item) or isinstance(item, property)
                yield ("", "") if is_function else _named("attribute", name, value), item
        case types.MethodType():
            yield (".__self__", ""), value.__self__
        case functools.partial():
            partial = cast("functools.partial[Any]", value)
            yield (".func", ""), partial.func
            yield (".args", ""), partial.args
            yield (".keywords", ""), partial.keywords
        case _:
            pass


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[_Name, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a cell that was never filled
            yield _named("closure variable", name, function), cell.cell_contents
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            yield _named("global", name, function), function.__globals__[name]
    for name, parameter in inspect.signature(function, follow_wrapped=False).parameters.items():
        yield _named("default", name, function), parameter.default


def _named(kind: str, name: str, definition: Any) -> _Name:
    what = "class" if isinstance(definition, type) else "function"
    return f", {kind} '{name}", f"' of {what} '{definition.__qualname__.rpartition('<locals>.')[2]}'"


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
