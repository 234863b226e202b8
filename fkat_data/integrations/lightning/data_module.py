"""A LightningDataModule of loaders that are made once, when this process has its rank."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from fkat_data.errors import ConfigurationError
from fkat_data.integrations.hydra import instantiate
from fkat_data.integrations.lightning.framework import Flavoured
from fkat_data.types import close_all

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule
else:
    LightningDataModule = object

_STAGES = ("train", "val", "test", "predict")


class DataModule(Flavoured, LightningDataModule):
    """Makes the loaders of each stage once, delivers to the Trainer's device, and closes them at the end.

    A loader is made when the Trainer asks for it first: then torch.distributed is initialised, and the ranks are
    known. It stays for later epochs and calls of the Trainer, until a ``batch_size`` of the model or of this module has
    another value, as a ``BatchSizeFinder`` tries them. ``teardown`` and exceptions close it, which ends its workers; the
    next iteration starts them again.

    Args:
        train: The loader for ``fit``: a configuration with ``_target_``, as a plain or an OmegaConf node, or a function
            without arguments that makes it; a dict or list of these makes several. None: the model has its own.
        val: The same for validation.
        test: The same for ``test``.
        predict: The same for ``predict``.

    Raises:
        ConfigurationError: A stage is none of these.
    """

    base_name = "LightningDataModule"

    def __init__(self, train: Any = None, val: Any = None, test: Any = None, predict: Any = None) -> None:
        super().__init__()
        stages = dict(zip(_STAGES, (train, val, test, predict), strict=True))
        self._given = {stage: given for stage, given in stages.items() if given is not None}
        self._made: dict[str, Any] = {}
        self._batch_sizes: dict[str, list[Any]] = {}
        for stage, given in self._given.items():
            _check(stage, given)
            # Lightning looks which methods there are to find out which stages have loaders.
            setattr(self, f"{stage}_dataloader", partial(self.loaders, stage))

    def loaders(self, stage: str) -> Any:
        """Return the loaders of a stage, ``"train"``, ``"val"``, ``"test"`` or ``"predict"``; make them first if need be.

        Raises:
            ConfigurationError: The configuration cannot work.
            KeyError: The stage has none.
        """
        batch_sizes = self._present_batch_sizes()
        if stage in self._made and self._batch_sizes[stage] != batch_sizes:
            close_all(_flat(self._made.pop(stage)))
        if stage not in self._made:
            self._made[stage] = _make(self._given[stage])
            self._batch_sizes[stage] = batch_sizes
        trainer = self.trainer
        if trainer is not None and trainer.strategy.root_device.type != "cpu":
            for loader in _flat(self._made[stage]):
                set_device = getattr(loader, "set_device", None)
                if callable(set_device):
                    set_device(trainer.strategy.root_device)
        return self._made[stage]

    def _present_batch_sizes(self) -> list[Any]:
        holders = [self, getattr(self.trainer, "lightning_module", None)]
        of_hparams = [getattr(holder, "hparams", {}).get("batch_size") for holder in holders]
        return [getattr(holder, "batch_size", None) for holder in holders] + of_hparams

    def close(self) -> None:
        """Close every loader that was made and can be closed; any number of calls."""
        for made in self._made.values():
            close_all(_flat(made))

    def teardown(self, stage: str) -> None:
        """Close the loaders."""
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """Close the loaders."""
        self.close()


def _check(stage: str, given: object) -> None:
    if not _is_description(given):
        expected = "a function that makes the loader, a configuration with _target_, or a dict or list of these"
        is_loader = isinstance(given, Iterable) and not isinstance(given, (str, Mapping, list))
        if is_loader:
            expected += "; not a loader that is made already, before the ranks and the device are known"
        raise ConfigurationError(stage, cast("object", given), expected)


def _is_description(given: object) -> bool:
    if isinstance(given, Mapping):
        node = cast("Mapping[str, Any]", given)
        return "_target_" in node or (bool(node) and all(map(_is_description, node.values())))
    if isinstance(given, Sequence) and not isinstance(given, str):
        nodes = cast("Sequence[Any]", given)
        return bool(nodes) and all(map(_is_description, nodes))
    return callable(given)


def _make(given: Any) -> Any:
    if isinstance(given, Mapping):
        node = cast("Mapping[str, Any]", given)
        return instantiate(node) if "_target_" in node else {name: _make(part) for name, part in node.items()}
    return [_make(part) for part in cast("Sequence[Any]", given)] if isinstance(given, Sequence) else given()


def _flat(made: Any) -> list[Any]:
    """Return every loader of nested dicts and lists, or of a CombinedLoader."""
    flattened = getattr(made, "flattened", None)
    if isinstance(flattened, list):
        return cast("list[Any]", flattened)
    if isinstance(made, Mapping):
        return [loader for value in cast("Mapping[Any, Any]", made).values() for loader in _flat(value)]
    if isinstance(made, (list, tuple)):
        return [loader for value in cast("list[Any]", made) for loader in _flat(value)]
    return [made]
