"""Turn a configuration file into a function that makes its loader."""

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fkat_data.configuration import instantiate, register_resolvers
from fkat_data.errors import ConfigurationError
from fkat_data.storage.location import machine_path
from fkat_data.streaming.dataset import StreamingDataset

_EXPECTED = "a YAML file"

# As text: a Path would turn the // of a URL into /.
Config = Annotated[str, typer.Argument(help="A YAML file in a Hydra configuration folder.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Hydra overrides such as seed=3 or dataset.batch_size=8.")]
Key = Annotated[str | None, typer.Option(help="The dataset's node. [default: dataset, or the whole file]")]
Nodes = Annotated[int, typer.Option(help="Number of nodes in the run.", min=1)]
Ranks = Annotated[int, typer.Option("--ranks-per-node", help="Number of ranks on each node.", min=1)]


def loader_maker(
    path: str | Path, overrides: Sequence[str], key: str | None, default_key: str = "loader", within: str = ""
) -> Callable[..., Any]:
    """Return a function that makes a new loader on each call. Its keywords replace arguments of the configuration.

    Args:
        path: A YAML file. Hydra looks up its defaults in the file's folder.
        overrides: Hydra overrides.
        key: The loader's node, such as ``data.train.loader``; None: the whole file if it has a ``_target_``, else
            ``default_key``.
        default_key: See ``key``.
        within: The node's own node whose arguments are replaced, if it has one of this name.

    Raises:
        ConfigurationError: The file or the node does not exist, or Hydra cannot compose the file.
    """
    config = _composed(path, overrides)
    if key is None and "_target_" not in config:
        key = default_key
    _node(config, key)

    def make_loader(**arguments: Any) -> Any:
        # Copy the whole configuration: interpolations in the node point outside it.
        node = _node(copy.deepcopy(config), key)
        inner = node.get(within)
        changed = inner if isinstance(inner, DictConfig) else node
        with open_dict(changed):
            changed.update(arguments)
        return instantiate(node)

    return make_loader


def streaming_dataset(
    config: str, overrides: Sequence[str], key: str | None, num_nodes: int, ranks_per_node: int, **replaced: Any
) -> StreamingDataset:
    """Return the dataset that a configuration makes, itself or in a loader, for the world size of a run.

    Args:
        config: A YAML file.
        overrides: Hydra overrides.
        key: The node of a dataset or a loader.
        num_nodes: Number of nodes in the run.
        ranks_per_node: Number of ranks on each node.
        **replaced: Arguments of the dataset that replace the configuration's.

    Raises:
        ConfigurationError: The configuration does not work, or the node is neither a dataset nor a loader of one.
    """
    # The run's world size, not that of the process that runs this command.
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(num_nodes * ranks_per_node),
        LOCAL_WORLD_SIZE=str(ranks_per_node),
        GROUP_WORLD_SIZE=str(num_nodes),
    )
    made: Any = loader_maker(config, overrides, key, "dataset", within="dataset")(**replaced)
    dataset = made if isinstance(made, StreamingDataset) else getattr(made, "dataset", None)
    if not isinstance(dataset, StreamingDataset):
        raise ConfigurationError("--key", key, "the node of a StreamingDataset or a StreamingDataLoader")
    return dataset


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
