"""Turn a configuration file into a function that makes its loader."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fkat_data.configuration import instantiate, register_resolvers
from fkat_data.errors import ConfigurationError
from fkat_data.location import machine_path

_EXPECTED = "a YAML file"


def loader_maker(
    path: str | Path, overrides: Sequence[str], key: str | None, default_key: str = "loader"
) -> Callable[..., Any]:
    """Return a function that makes a new loader on each call. Its keywords replace arguments of the configuration.

    Args:
        path: A YAML file. Hydra looks up its defaults in the file's folder.
        overrides: Hydra overrides.
        key: The loader's node, such as ``data.train.loader``; None: the whole file if it has a ``_target_``, else
            ``default_key``.
        default_key: See ``key``.

    Raises:
        ConfigurationError: The file or the node does not exist, or Hydra cannot compose the file.
    """
    config, key = _found(path, overrides, key, default_key)

    def make_loader(**arguments: Any) -> Any:
        # Copy the whole configuration: interpolations in the node point outside it.
        node = _node(copy.deepcopy(config), key)
        with open_dict(node):
            node.update(arguments)
        return instantiate(node)

    return make_loader


def target_of(path: str | Path, overrides: Sequence[str], key: str | None, default_key: str = "loader") -> str:
    """Return the name of the class or function that a node instantiates. It takes the arguments of ``loader_maker``.

    Raises:
        ConfigurationError: The file or the node does not exist, or Hydra cannot compose the file.
    """
    config, key = _found(path, overrides, key, default_key)
    return str(_node(config, key)["_target_"])


def _found(
    path: str | Path, overrides: Sequence[str], key: str | None, default_key: str
) -> tuple[DictConfig, str | None]:
    config = _composed(path, overrides)
    if key is None and "_target_" not in config:
        key = default_key
    _node(config, key)
    return config, key


def _composed(path: str | Path, overrides: Sequence[str]) -> DictConfig:
    file = machine_path("CONFIG", path, _EXPECTED)
    if not file.is_file() or file.suffix != ".yaml":
        raise ConfigurationError(
            "CONFIG", str(path), f"{_EXPECTED} that exists; its name ends with .yaml, as Hydra wants"
        )
    register_resolvers()
    try:
        with initialize_config_dir(str(file.parent), version_base="1.3"):
            return compose(file.stem, list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        # What follows is Hydra's search path.
        reason = _one_line(str(error).partition("\n\n")[0])
        raise ConfigurationError("CONFIG", str(path), f"a configuration that Hydra can compose: {reason}") from error
    except (YAMLError, UnicodeError, OSError) as error:
        raise ConfigurationError("CONFIG", str(path), f"valid YAML: {_one_line(str(error))}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _node(config: DictConfig, key: str | None) -> DictConfig:
    node = config if key is None else OmegaConf.select(config, key)
    if not isinstance(node, DictConfig) or "_target_" not in node:
        keys = ", ".join(str(name) for name in config)
        raise ConfigurationError("--key", key, f"a node with a `_target_` (the configuration has: {keys})")
    return node
