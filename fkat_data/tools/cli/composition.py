"""From a configuration file to a function that makes its loader, again and again."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fkat_data.configuration import instantiate, register_resolvers
from fkat_data.errors import ConfigurationError

__all__ = ["loader_maker", "target_of"]


def loader_maker(
    path: Path, overrides: Sequence[str], key: str | None, default_key: str = "loader"
) -> Callable[..., Any]:
    """Return a function that instantiates a new loader, with some of its arguments changed.

    Args:
        path: A YAML file; its folder is the tree that its defaults are looked up in.
        overrides: In Hydra's grammar.
        key: The loader's node, as in ``data.train.loader``; None: the whole file if it has a ``_target_``, else
            ``default_key``.
        default_key: See ``key``.

    Raises:
        ConfigurationError: There is no such file or node, or the file does not compose.
    """
    config, key = _found(path, overrides, key, default_key)

    def make_loader(**arguments: Any) -> Any:
        # A copy of the whole: the node's interpolations lead out of it.
        node = _node(copy.deepcopy(config), key)
        with open_dict(node):
            node.update(arguments)
        return instantiate(node)

    return make_loader


def target_of(path: Path, overrides: Sequence[str], key: str | None, default_key: str = "loader") -> str:
    """Return the name of the class or function that a node instantiates; the arguments are those of ``loader_maker``.

    Raises:
        ConfigurationError: There is no such file or node, or the file does not compose.
    """
    config, key = _found(path, overrides, key, default_key)
    return str(_node(config, key)["_target_"])


def _found(path: Path, overrides: Sequence[str], key: str | None, default_key: str) -> tuple[DictConfig, str | None]:
    config = _composed(path, overrides)
    if key is None and "_target_" not in config:
        key = default_key
    _node(config, key)
    return config, key


def _composed(path: Path, overrides: Sequence[str]) -> DictConfig:
    if not path.is_file() or path.suffix not in (".yaml", ".yml"):
        raise ConfigurationError("CONFIG", str(path), "a YAML file that exists")
    register_resolvers()
    try:
        with initialize_config_dir(str(path.resolve().parent), version_base="1.3"):
            return compose(path.stem, list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError("CONFIG", str(path), f"a configuration that composes: {error}") from error


def _node(config: DictConfig, key: str | None) -> DictConfig:
    node = config if key is None else OmegaConf.select(config, key)
    if not isinstance(node, DictConfig) or "_target_" not in node:
        keys = ", ".join(str(name) for name in config)
        raise ConfigurationError("--key", key, f"a node with a `_target_` (the configuration has: {keys})")
    return node
