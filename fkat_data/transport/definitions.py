"""Classes and functions that the other process cannot import: sent once by value, later by a key.

Each class has one key in all processes. Who gets a class under a key that it knows takes its own, and leaves it as it
is: the trainer's classes never change because of what workers do with their copies.
"""

import copyreg
import enum
import functools
import importlib
import io
import itertools
import linecache
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import cloudpickle
import torch

from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.lifetime import WeakTable
from fkat_data.runtime.machine import call_in_forks
from fkat_data.transport.buffers import BufferReducer, BufferTable, Mappings, hashed_buffer

#: The script that runs, as processes see it: multiprocessing calls it so in those that it spawns.
_SCRIPTS = ("__main__", "__mp_main__")
_Cache = type(functools.lru_cache(lambda: None))
_Property: Any = functools.cached_property
_DEFINITIONS = (type, types.FunctionType, _Cache)
_NUM_REDUCED = 6
_LEAST_PRUNED = 64
# Where the name of the file is among the arguments of a new code object.
_FILENAME = 10
# Of a recursion: what a __getattr__ asks for is the same from the second on.
_MOST_FRAMES = 32


class _Known(NamedTuple):
    """What is known of a definition.

    Attributes:
        reference: Leads to it.
        key: Its key.
        is_received: Whether the trainer has sent it.
        body: A class made here, pickled by value; empty until it is needed.
    """

    reference: "weakref.ref[Any]"
    key: bytes
    is_received: bool
    body: bytes = b""


class _KeyedDefinitions:
    """The definitions that have a key, for as long as they live."""

    def __init__(self) -> None:
        self._by_key: WeakTable[bytes, Any] = WeakTable()
        # By identity: a metaclass may make its classes equal, or refuse to hash them.
        self._by_identity: dict[int, _Known] = {}
        self._most = _LEAST_PRUNED
        self._incomplete: set[bytes] = set()
        self._numbers = itertools.count()
        self._process = os.urandom(8)
        # A worker keeps what its trainer has sent.
        self._received: list[Any] = []

    def renew(self) -> None:
        """In a forked child: give other keys than the parent does."""
        self._process = os.urandom(8)

    def known(self, definition: Any) -> _Known | None:
        """Return what is known of a definition; None if it has no key."""
        known = self._by_identity.get(id(definition))
        return known if known is not None and known.reference() is definition else None

    def key_of(self, definition: Any) -> bytes:
        """Return a definition's key, which may be a new one."""
        known = self.known(definition)
        if known is not None:
            return known.key
        key = b"%s%x" % (self._process, next(self._numbers))
        self._add(definition, key, is_received=False)
        return key

    def body_of(self, made: type) -> tuple[bytes, bytes]:
        """Return the key and the body of a class that this process has made. A class does not change: it is kept."""
        key = self.key_of(made)
        known = self._by_identity[id(made)]
        if not known.body:
            known = self._by_identity[id(made)] = known._replace(body=_dump(made))
        return key, known.body

    def receive(self, definitions: Iterable[Any]) -> None:
        """In a forked child: refer to the parent's definitions, which have keys, as to those that were sent."""
        for definition in definitions:
            known = self.known(definition)
            if known is not None:
                self._by_identity[id(definition)] = known._replace(is_received=True)
                self._received.append(definition)

    def find(self, key: bytes) -> Any:
        """Return the definition with a key; None if there is none, or if it is not complete."""
        return None if key in self._incomplete else self._by_key.get(key)

    def build(self, key: bytes, make: Callable[..., Any], arguments: tuple[Any, ...], *, is_received: bool) -> Any:
        """Return the definition with a key; make it if there is none."""
        definition = self._by_key.get(key)
        if definition is None:
            definition = make(*arguments)
            self._incomplete.add(key)
            self._add(definition, key, is_received=is_received)
            if is_received:
                self._received.append(definition)
        return definition

    def complete(self, key: bytes, definition: Any, set_state: Callable[[Any, Any], Any], state: Any) -> None:
        """Give a definition its content, unless it has one."""
        if key in self._incomplete:
            set_state(definition, state)
            self._incomplete.discard(key)
            known = self.known(definition)
            if known is not None and known.is_received:
                _show_in_script(definition)

    def _add(self, definition: Any, key: bytes, *, is_received: bool) -> None:
        # Without a callback, in which Python would swallow what a signal's handler raises.
        if len(self._by_identity) >= self._most:
            for identity, known in list(self._by_identity.items()):
                if known.reference() is None and self._by_identity.get(identity) is known:
                    self._by_identity.pop(identity, None)
            self._most = max(_LEAST_PRUNED, 2 * len(self._by_identity))
        self._by_identity[id(definition)] = _Known(weakref.ref(definition), key, is_received)
        self._by_key[key] = definition


_registry = _KeyedDefinitions()
# Workers are forks of one process: what they make has other keys.
call_in_forks(_registry.renew)


def key_own_definitions() -> list[Any]:
    """Return the classes, and the script's functions, that no other process finds by their names; each gets a key.

    What a fork of this process makes of them refers to them by their keys, once it has called ``receive_from_parent``: the
    caller keeps them for as long as it gets something from the fork.
    """
    seen: dict[int, type] = {id(object): object}
    to_visit: list[type] = [object]
    while to_visit:
        # Not by the class: a metaclass may have another way.
        for found in type.__subclasses__(to_visit.pop()):
            if id(found) not in seen:
                seen[id(found)] = found
                to_visit.append(found)
    in_script = (found for name in _SCRIPTS if name in sys.modules for found in vars(sys.modules[name]).copy().values())
    functions = (found for found in in_script if is_definition(found) and not isinstance(found, type))
    own = [found for found in (*seen.values(), *functions) if _is_own(found)]
    for found in own:
        _registry.key_of(found)
    return own


def _is_own(definition: Any) -> bool:
    module, name = _qualified_name(definition)
    return module in _SCRIPTS or "<" in name


def receive_from_parent(definitions: Iterable[Any]) -> None:
    """In a fork: refer to definitions of the parent's, which have keys, as a worker does to those that it was sent."""
    _registry.receive(definitions)


def is_definition(value: Any) -> bool:
    """Return whether the value is a class, a function, or a function with a cache of ``functools``."""
    return isinstance(value, _DEFINITIONS)


def dump_shipment(value: Any) -> tuple[bytes, list[Any]]:
    """Pickle what a worker gets from its trainer.

    Returns:
        The bytes, and the definitions in them, which the worker refers to by their keys: the caller keeps them for as
        long as the worker lives.

    Raises:
        Exception: Whatever the pickling raises; a ``PicklingError`` for what the worker could not import.
    """
    stream = io.BytesIO()
    pickler = ShipmentPickler(stream)
    pickler.dump(value)
    return stream.getvalue(), pickler.definitions


def write_shipment(value: Any, file: IO[bytes], buffers: BufferTable) -> tuple[list[Any], frozenset[str]]:
    """Write what a worker gets from its trainer to a file, for ``fkat_data.transport.buffers.load_with_buffers``.

    Large arrays and tensors are copied once, from where they lie to the file.

    Args:
        value: What the worker gets.
        file: Its end follows.
        buffers: Knows what is not in the file; it stays open for as long as the file is read.

    Returns:
        As ``dump_shipment``, the definitions; and the modules that what is sent is found in by name.

    Raises:
        Exception: Whatever the pickling raises, as for ``dump_shipment``.
        OSError: The file cannot be written.
    """
    pickler = ShipmentPickler(file, buffers)
    pickler.dump(value)
    buffers.write(file)
    return pickler.definitions, frozenset(pickler.modules)


def digest_of_shipment(value: Any, functions: tuple[Any, ...] = ()) -> bytes:
    """Return a digest of what ``dump_shipment`` would return; equal ones mean that nothing has changed.

    Where code comes from does not count: a cell of a notebook that runs again has another name. Arrays and tensors are
    hashed where they lie; of a mapped file, it counts which one it is.

    Args:
        value: What is sent.
        functions: What is sent beside it. The weights of models in it do not count, which training changes.

    Raises:
        Exception: Whatever the pickling raises.
    """
    stream = _Digest()
    ShipmentPickler(stream, stream.add, is_digested=True).dump(value)
    ShipmentPickler(stream, stream.add, is_digested=True, has_weights=False).dump(functions)
    return stream.digest()


def largest_part(name: str, value: Any) -> tuple[str, int]:
    """Return the attribute of a value that ``dump_shipment`` makes most bytes of, by its path, and how many.

    Args:
        name: How the value is called.
        value: What is sent. Where it has no attributes, it is the largest part itself.
    """
    attributes = cast("dict[str, Any]", getattr(value, "__dict__", {}))
    parts = {f"{name}.{attribute}": part for attribute, part in attributes.items()} or {name: value}
    sizes = {path: _size_of(part) for path, part in parts.items()}
    largest = max(sizes, key=sizes.__getitem__)
    return largest, sizes[largest]


def _size_of(value: Any) -> int:
    size = _Size()
    try:
        ShipmentPickler(size, size.add).dump(value)
    except genuine(Exception):  # the object as a whole may leave this attribute out
        return 0
    return size.num_bytes


class _Size(io.RawIOBase):
    """Counts what is written, and keeps nothing."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, buffer: pickle.PickleBuffer) -> bool:
        self.num_bytes += buffer.raw().nbytes
        return False

    def write(self, data: Any, /) -> int:
        num_bytes = memoryview(data).nbytes
        self.num_bytes += num_bytes
        return num_bytes


class _Digest(io.RawIOBase):
    """Keeps a digest of what is written, and nothing else."""

    def __init__(self) -> None:
        # Imported here, because most processes digest nothing.
        import xxhash  # noqa: PLC0415 - see above

        self._digest = xxhash.xxh3_128()
        self._mappings = Mappings()

    def add(self, buffer: pickle.PickleBuffer) -> bool:
        """Digest a buffer where it lies; return whether it belongs in the pickle."""
        hashed = hashed_buffer(buffer, self._mappings)
        if hashed is not None:
            self._digest.update(hashed)
        return hashed is None

    def write(self, data: Any, /) -> int:
        self._digest.update(data)
        return memoryview(data).nbytes

    def digest(self) -> bytes:
        return self._digest.digest()


def reduce_definition(definition: Any) -> Any:
    """Reduce a class or a function for a pickler of what the trainer gets; ``NotImplemented`` for one to import."""
    known = _registry.known(definition)
    if known is not None and known.is_received:
        return _find, (known.key,)
    if _is_own(definition):
        if isinstance(definition, type):
            return _load_class, _registry.body_of(definition)
        return pickle.loads, (_dump(definition),)
    return NotImplemented


def _build(key: bytes, make: Callable[..., Any], arguments: tuple[Any, ...], is_received: bool) -> Any:
    return _registry.build(key, make, arguments, is_received=is_received)


class _DefinitionPickler(cloudpickle.Pickler):
    """Pickles definitions by value, those of some kinds with their keys."""

    def __init__(
        self,
        stream: IO[bytes] | io.RawIOBase,
        kinds: tuple[type, ...],
        take_buffer: Callable[[pickle.PickleBuffer], bool] | None = None,
        *,
        is_shipment: bool,
        is_digested: bool = False,
    ) -> None:
        super().__init__(stream, protocol=5, buffer_callback=take_buffer)
        if "__mp_main__" in sys.modules:  # which cloudpickle takes for a module that can be imported
            cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])
        self._is_shipment = is_shipment
        self._kinds = kinds
        self._is_digested = is_digested
        self.definitions: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        if not is_definition(obj):
            if isinstance(obj, types.CodeType):
                return _reduce_code(obj, self.dispatch_table[types.CodeType], is_digested=self._is_digested)
            if isinstance(obj, types.ModuleType):
                return _reduce_module(obj)
            return _reduce_property(obj) if type(obj) is _Property else NotImplemented
        reduced = cast("Any", _reduce_cache(obj) if isinstance(obj, _Cache) else super().reducer_override(obj))
        if not isinstance(reduced, tuple) or len(reduced := cast("tuple[Any, ...]", reduced)) != _NUM_REDUCED:
            return reduced  # found by its name
        if not isinstance(obj, self._kinds):
            return reduced
        make, arguments, state, _, _, set_state = reduced
        if isinstance(obj, type):
            arguments = _with_slots(obj, arguments)
        key = _registry.key_of(obj)
        self.definitions.append(obj)
        return _build, (key, make, arguments, self._is_shipment), (key, set_state, state), None, None, _complete


class ShipmentPickler(_DefinitionPickler):
    """Pickles what a worker gets; refuses what only this process can import.

    Args:
        stream: Where the pickle goes.
        take_buffer: Takes large arrays and tensors, and returns whether they belong in the pickle; None: they do.
        is_digested: Whether the pickle is only digested.
        has_weights: Whether the weights of models belong to it.
    """

    def __init__(
        self,
        stream: IO[bytes] | io.RawIOBase,
        take_buffer: Callable[[pickle.PickleBuffer], bool] | None = None,
        *,
        is_digested: bool = False,
        has_weights: bool = True,
    ) -> None:
        super().__init__(stream, _DEFINITIONS, take_buffer, is_shipment=True, is_digested=is_digested)
        self.modules: set[str] = set()
        """Those that what is pickled is found in by name."""
        self._checked: set[type] = set()
        self._reduce_buffer = BufferReducer()
        self._has_weights = has_weights
        # A module may put any object in its own place.
        self._stand_ins = {
            id(found): name
            for name, found in sys.modules.copy().items()
            if not isinstance(found, types.ModuleType) and not is_definition(found)
        }

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle an object.

        Raises:
            PicklingError: A worker cannot import it.
        """
        if not self._has_weights and isinstance(obj, (torch.nn.Module, torch.optim.Optimizer)):
            content = _content_without_weights(obj)
            if content is not None:
                return _without_weights, (type(obj), content)
        reduced: Any = super().reducer_override(obj)
        if reduced is NotImplemented:
            reduced = self._reduce_buffer(obj)
        if reduced is NotImplemented:
            if id(obj) in self._stand_ins:
                return _import, (self._stand_ins[id(obj)],)
            if is_definition(obj):
                self._note(obj)
            else:
                reduce: Any = cast("dict[Any, Any]", self.dispatch_table).get(type(obj))
                reduced = obj.__reduce_ex__(5) if reduce is None else reduce(obj)
                if isinstance(reduced, str):
                    self._note(obj)
                elif reduced[0] is copyreg.__newobj__ and reduced[2] is not None:  # type: ignore[attr-defined]  # typeshed has another name
                    self._check_blank(cast("type[object]", type(obj)), reduced[1])
        elif isinstance(obj, types.ModuleType) and isinstance(name := getattr(obj, "__name__", None), str):
            self.modules.add(name)
        return reduced

    def _note(self, found: Any) -> None:
        """Note where what is pickled as a name is found.

        Raises:
            PicklingError: A worker cannot import it.
        """
        _check_importable(found)
        module = getattr(found, "__module__", None)
        if isinstance(module, str):
            self.modules.add(module)

    def _check_blank(self, kind: type[object], arguments: tuple[Any, ...]) -> None:
        """Raise an error for an object of a class whose ``__getattr__`` fails before the object has its attributes.

        Unpickling asks a new object for ``__setstate__``, as ``copy`` does.
        """
        if kind in self._checked:
            return
        self._checked.add(kind)
        asks = getattr(kind, "__getattr__", None)
        # One that is made of more than its class may be expensive to make.
        if not isinstance(asks, types.FunctionType) or kind.__new__ is not object.__new__ or arguments != (kind,):
            return
        if hasattr(kind, "__setstate__"):
            return
        blank = object.__new__(kind)
        try:
            getattr(blank, "__setstate__", None)
        except genuine(Exception) as error:
            raise pickle.PicklingError(_unset_attribute(error, asks)) from error


def _content_without_weights(trained: Any) -> dict[str, Any] | None:
    """Return what is pickled of a model or an optimizer; of what training changes, the names. None: that is unknown."""
    kind = cast("type[object]", type(trained))
    if (kind.__reduce_ex__, kind.__reduce__) != (object.__reduce_ex__, object.__reduce__):
        return None
    content = trained.__getstate__()
    if not isinstance(content, dict):
        return None
    content = cast("dict[str, Any]", content)
    if isinstance(trained, torch.optim.Optimizer):
        return {"names": list(content)}
    changing: dict[str, Any] = {name: list(content.get(name, ())) for name in ("_parameters", "_buffers")}
    return {**content, **changing, "training": None}


def _without_weights(kind: type[object], content: dict[str, Any]) -> Any:
    raise TypeError(f"a {kind.__qualname__} was digested without its weights, so nothing can be made of it: {content}")


def _unset_attribute(error: Exception, asks: types.FunctionType) -> str:
    """Return why an object cannot be unpickled whose ``__getattr__`` has failed before its attributes were set."""
    wanted: object = None
    traceback = error.__traceback__
    for _ in range(_MOST_FRAMES):
        if traceback is None:
            break
        frame = traceback.tb_frame
        if frame.f_code is asks.__code__ and asks.__code__.co_argcount > 1:
            wanted = frame.f_locals.get(asks.__code__.co_varnames[1])
        traceback = traceback.tb_next
    if isinstance(error, RecursionError):
        found = f"asks for {wanted!r}, which calls __getattr__ again, without an end"
    else:
        found = f"raises {type(error).__name__}: {error}"
    return (
        f"unpickling asks an object for '__setstate__' before its attributes are set, and {asks.__qualname__} then {found}. "
        "Let __getattr__ begin with `if name.startswith('__'): raise AttributeError(name)`, where name is what it is asked "
        "for, or give the class a __setstate__"
    )


class _MadePickler(_DefinitionPickler):
    """Refers to what the trainer has sent."""

    def reducer_override(self, obj: Any) -> Any:
        known = _registry.known(obj) if is_definition(obj) else None
        if known is not None and known.is_received:
            return _find, (known.key,)
        return super().reducer_override(obj)


def _reduce_code(code: types.CodeType, reduce: Callable[[Any], Any], *, is_digested: bool) -> Any:
    """Reduce code with the name of its file, which cloudpickle leaves out from 3.1.3 on, and with lines that no file has."""
    _, arguments = reduce(code)
    filename = "" if is_digested else code.co_filename
    arguments = (*arguments[:_FILENAME], filename, *arguments[_FILENAME + 1 :])
    lines = [] if is_digested or Path(filename).exists() else linecache.getlines(filename)
    return (_make_code, (arguments, lines)) if lines else (types.CodeType, arguments)


def _make_code(arguments: tuple[Any, ...], lines: list[str]) -> types.CodeType:
    filename = arguments[_FILENAME]
    # Without a time: Python does not look for the file.
    linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
    return types.CodeType(*arguments)


def _with_slots(made: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return cloudpickle's arguments for a new class, with the slots: it would give the class's objects a dictionary."""
    if "__slots__" not in vars(made) or issubclass(made, enum.Enum) or NamedTuple in arguments[2]:
        return arguments
    content: dict[str, Any] = {**arguments[3], "__slots__": vars(made)["__slots__"]}
    return (*arguments[:3], content, *arguments[4:])


def _dump(made: Any) -> bytes:
    # Only classes have keys: a function's closure may change from one microbatch to the next.
    stream = io.BytesIO()
    _MadePickler(stream, (type,), is_shipment=False).dump(made)
    return stream.getvalue()


def _reduce_cache(cache: Any) -> Any:
    """Reduce a function with a cache of ``functools`` to one with an empty cache."""
    if is_importable(cache):
        return NotImplemented
    state: dict[str, Any] = {
        name: value for name, value in cast("dict[str, Any]", vars(cache)).items() if name != "cache_parameters"
    }
    parameters = cache.cache_parameters()
    return _make_cache, (cache.__wrapped__, parameters["maxsize"], parameters["typed"]), state, None, None, _update


def _make_cache(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _update(definition: Any, state: dict[str, Any]) -> None:
    vars(definition).update(state)


def _reduce_module(module: types.ModuleType) -> Any:
    """Reduce a module to its name, whatever its class; ``NotImplemented`` for one that is not found by a name.

    cloudpickle does so with modules of no class of their own. Yet it finds others: it takes a module that has the name
    of any attribute in a function's code for one that the function needs.
    """
    # Not by attribute: a lazy module may import much where it is asked for more.
    name: Any = object.__getattribute__(module, "__dict__").get("__name__")
    if not isinstance(name, str) or sys.modules.get(name) is not module:
        name = next((key for key, found in sys.modules.copy().items() if found is module), name)
    if not isinstance(name, str) or _is_sent_by_value(name):
        return NotImplemented
    if sys.modules.get(name) is module:
        return _import, (name,)
    # A part of a lazy module, such as torch.ops.aten.
    parent, _, attribute = name.rpartition(".")
    if parent in sys.modules and vars(sys.modules[parent]).get(attribute) is module:
        return getattr, (sys.modules[parent], attribute)
    return NotImplemented


def _is_sent_by_value(name: str) -> bool:
    by_value = cast("set[str]", cloudpickle.list_registry_pickle_by_value())
    return any(name == other or name.startswith(f"{other}.") for other in by_value)


def _show_in_script(definition: Any) -> None:
    """Let who looks a definition of the script up by its name find it: ``pickle``, ``torch.load``, type hints."""
    module, name = _qualified_name(definition)
    script = sys.modules.get("__main__")
    if module in _SCRIPTS and script is not None and "." not in name:
        # What this process has there itself stays.
        vars(script).setdefault(name, definition)
        sys.modules.setdefault(module, script)


def _import(name: str) -> Any:
    importlib.import_module(name)
    return sys.modules[name]


def _reduce_property(cached: Any) -> Any:
    # Up to Python 3.11 it has a lock.
    return functools.cached_property, (cached.func,), {"attrname": cached.attrname, "__doc__": cached.__doc__}


def is_importable(definition: Any) -> bool:
    """Return whether a definition is found by its name in a module other than the script that runs."""
    module, name = _qualified_name(definition)
    found: Any = None if module in _SCRIPTS else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is definition


def _qualified_name(definition: Any) -> tuple[str, str]:
    """Return the names of a definition's module and of itself; empty: it has none."""
    return str(getattr(definition, "__module__", "")), str(getattr(definition, "__qualname__", ""))


def _check_importable(value: Any) -> None:
    """Raise an error for what is pickled as a name in a module that workers do not have."""
    module = getattr(value, "__module__", None)
    if not isinstance(module, str):
        return
    # A part of a package may have been made by C code of the package's.
    package = sys.modules.get(module.partition(".")[0])
    if module in _SCRIPTS or (package is not None and getattr(package, "__spec__", None) is None):
        raise pickle.PicklingError(f"it is pickled as a name in {module}, which a worker cannot import")


def _complete(definition: Any, content: tuple[bytes, Callable[[Any, Any], Any], Any]) -> None:
    key, set_state, state = content
    _registry.complete(key, definition, set_state, state)


def _load_class(key: bytes, body: bytes) -> Any:
    found = _registry.find(key)
    return pickle.loads(body) if found is None else found


def _find(key: bytes) -> Any:
    found = _registry.find(key)
    if found is None:
        raise LookupError("a microbatch refers to a class or function that this loader sent, and that no longer exists")
    return found
