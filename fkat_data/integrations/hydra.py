"""Objects from Hydra's configurations, and resolvers for ranks: behind ``fkat_data.configuration``."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

import hydra.utils
from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from fkat_data.errors import ConfigurationError, FkatDataError, arguments
from fkat_data.errors.wording import add_note
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.launch import current_launch

__all__ = ["instantiate", "rank", "register_resolvers", "world_size"]

_HYDRA_KEYS = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}


def instantiate(config: DictConfig | ListConfig | Mapping[str, Any]) -> Any:
    """Build what a configuration describes, with ``hydra.utils.instantiate`` and plain lists and dicts as arguments.

    All keys of all nodes are checked first, including those of ``_partial_`` nodes, which would otherwise fail later,
    when a worker calls them.

    Args:
        config: Nodes with ``_target_`` and the arguments of that class or function.

    Raises:
        ConfigurationError: A key is unknown, missing or unset, or a target cannot be imported.
        Exception: Any exception of a target, unchanged.
    """
    if not isinstance(config, (DictConfig, ListConfig, Mapping)):
        raise ConfigurationError("config", config, "a configuration: a mapping with `_target_`, or what Hydra composes")
    # A plain mapping may hold classes and other objects, as for Hydra's own function.
    created = config if OmegaConf.is_config(config) else OmegaConf.create(dict(config), flags={"allow_objects": True})
    node = cast("DictConfig | ListConfig", created)
    _check(_resolved(node), "")
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except genuine(InstantiationException) as error:
        cause = error.__cause__
        if cause is None:
            raise
        # The last line of Hydra's message is the path in the configuration, except at its root.
        key_line = str(error).splitlines()[-1]
        if key_line.startswith("full_key:"):
            add_note(cause, f"in the configuration, {key_line}")
        raise cause from cause.__cause__


def _resolved(node: DictConfig | ListConfig) -> Any:
    try:
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except genuine(OmegaConfBaseException) as error:
        own_error = _own_cause(error)
        if own_error is not None:
            raise own_error from error
        key, reason = str(error.full_key), str(error.msg).splitlines()[0]
        if isinstance(error, MissingMandatoryValue):
            raise ConfigurationError(key, "<missing>", "a value, on the command line or in a file") from None
        raise ConfigurationError(key, "<unresolved>", f"a value that resolves: {reason}") from error


def _own_cause(error: BaseException | None) -> FkatDataError | None:
    # OmegaConf wraps a resolver's error once for each level of the tree.
    while error is not None and not isinstance(error, FkatDataError):
        error = error.__cause__ or error.__context__
    return error


def _check(node: Any, path: str) -> None:
    if isinstance(node, dict):
        entries = cast("dict[str, Any]", node)
        if "_target_" in entries:
            _check_keys(entries, path)
        if entries.get("_recursive_", True):
            for key, value in entries.items():
                _check(value, _child_path(path, key))
    elif isinstance(node, list):
        for index, item in enumerate(cast("list[Any]", node)):
            _check(item, f"{path}[{index}]")


def _check_keys(node: dict[str, Any], path: str) -> None:
    target = node["_target_"]
    located = _located(target, path)
    try:
        parameters = inspect.signature(located).parameters.values()
    except genuine(ValueError):
        return  # some callables written in C have no signature
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    by_name = [
        parameter
        for parameter in parameters
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)
    ]
    names = [parameter.name for parameter in by_name]
    for key, value in node.items():
        if key not in _HYDRA_KEYS and key not in names:
            close = difflib.get_close_matches(key, names, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            keys = ", ".join(names) or "it has none"
            raise ConfigurationError(_child_path(path, key), value, f"an argument of {target}{hint}: {keys}")
    if node.get("_partial_") or node.get("_args_"):
        return
    for parameter in by_name:
        if parameter.default is parameter.empty and parameter.name not in node:
            raise ConfigurationError(_child_path(path, parameter.name), "<missing>", f"a value: {target} requires it")


def _located(target: object, path: str) -> Callable[..., Any]:
    if callable(target):
        return target
    try:
        found = _imported(str(target))
    except genuine(Exception) as error:
        # A module may raise anything when it is imported.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigurationError(_child_path(path, "_target_"), target, f"an importable name ({reason})") from error
    if not callable(found):
        raise ConfigurationError(_child_path(path, "_target_"), target, "a class or a function")
    return cast("Callable[..., Any]", found)


def _imported(name: str) -> Any:
    """Return what a dotted name leads to. Hydra's own function also logs what it raises, in three lines."""
    first, *rest = name.split(".")
    found: Any = importlib.import_module(first)
    path = first
    for part in rest:
        path += f".{part}"
        try:
            found = getattr(found, part)
        except genuine(AttributeError):
            if not isinstance(found, ModuleType):
                raise
            found = importlib.import_module(path)
    return found


def _child_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def register_resolvers() -> None:
    """Register ``${fkat.rank:}`` and the other resolvers with OmegaConf. Safe to call more than once."""
    for resolver in (rank, world_size, local_rank, dp_rank, dp_size):
        # Not cached: a process may compose for several worlds in turn, as tests do.
        register = cast("Callable[..., Any]", OmegaConf.register_new_resolver)
        register(f"fkat.{resolver.__name__}", resolver, replace=True, use_cache=False)


def rank() -> int:
    """Return this process's rank.

    Raises:
        ConfigurationError: The rank is not known, an environment variable is invalid, or two of them or a variable and
            the process group contradict each other.
    """
    return current_launch().rank


def world_size() -> int:
    """Return the number of ranks.

    Raises:
        ConfigurationError: An environment variable is invalid, or contradicts another one or the process group.
    """
    return current_launch().world_size


def local_rank() -> int:
    """Return this process's rank on its machine.

    Raises:
        ConfigurationError: An environment variable is invalid, or contradicts another one or the process group.
    """
    return current_launch().local_rank


def dp_rank(model_parallel_size: int = 1) -> int:
    """Return this process's data-parallel rank.

    Args:
        model_parallel_size: Number of consecutive ranks that share one model, a divisor of the number of ranks.

    Raises:
        ConfigurationError: ``model_parallel_size`` or an environment variable is invalid.
    """
    return rank() // _checked_size(model_parallel_size)


def dp_size(model_parallel_size: int = 1) -> int:
    """Return the number of data-parallel ranks.

    Args:
        model_parallel_size: Number of consecutive ranks that share one model, a divisor of the number of ranks.

    Raises:
        ConfigurationError: ``model_parallel_size`` or an environment variable is invalid.
    """
    return world_size() // _checked_size(model_parallel_size)


def _checked_size(model_parallel_size: object) -> int:
    size = arguments.integer("model_parallel_size", model_parallel_size, minimum=1)
    if world_size() % size:
        raise ConfigurationError("model_parallel_size", size, f"a divisor of the {world_size()} ranks (WORLD_SIZE)")
    return size
