"""A mixin with which the ``Trainer`` of transformers resumes a loader of this library at its very next microbatch."""

import json
import logging
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch

from fkat_data.errors import ConfigurationError, RankMismatchError, StateMismatchError
from fkat_data.integrations.huggingface.preparation import AccelerateDataLoader, is_own_loader, wrapper_for
from fkat_data.runtime.distributed import gather
from fkat_data.runtime.interruption import genuine
from fkat_data.types import stream_source_of


class ExactResumeMixin:
    """Lets a ``Trainer`` train on a loader of this library, and resume it exactly.

    ```python
    class ExactTrainer(ExactResumeMixin, transformers.Trainer):
        pass

    trainer = ExactTrainer(model=model, args=args, train_dataset=loader)
    trainer.train(resume_from_checkpoint=last_checkpoint(args.output_dir))
    ```

    ``train_dataset`` and ``eval_dataset`` may be a ``ShardedDataLoader``, a ``StreamingDataLoader`` or any other loader
    of this library, whose microbatches are what the model takes; anything else is treated as before. The same holds for
    what a ``get_train_dataloader`` of yours returns, and the other two of its kind. The loader batches and shuffles: the
    Trainer's own arguments for that have no effect. Each rank makes the loader of its own part; a
    ``fkat_data.DataLoader`` is dealt out.

    A checkpoint has the loaders' positions. A resume begins with the next microbatch; what was delivered before is not
    loaded again. The length of the loader must be the same then, and so must ``gradient_accumulation_steps``. A
    checkpoint has no accumulated gradients: where training stops between two updates, it has the position before the first
    microbatch of the update that is not complete.
    """

    # The Trainer's.
    accelerator: Any
    args: Any
    eval_dataset: Any
    train_dataset: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._wrappers: dict[str, AccelerateDataLoader] = {}
        self._loader_states: dict[str, Any] = {}
        self._resumed_checkpoint: str | None = None
        self._is_training = False
        # Of the train() under way: a second call of get_train_dataloader() gets the one that is trained on.
        self._trained_wrapper: AccelerateDataLoader | None = None
        # The optimizer's step whose microbatches come after that loader's mark; -1: none was asked for.
        self._marked_step = -1
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        before = cls.__mro__[: cls.__mro__.index(ExactResumeMixin)]
        trainer = next((base for base in before if base.__module__.partition(".")[0] == "transformers"), None)
        if trainer is not None:
            raise TypeError(
                f"{cls.__name__} has ExactResumeMixin behind {trainer.__name__}, where it has no effect: name it first, "
                f"class {cls.__name__}(ExactResumeMixin, {trainer.__name__})"
            )
        for role in ("train", "eval", "test"):
            name = f"get_{role}_dataloader"
            definer = next((base for base in before if name in vars(base)), None)
            # A subclass of this one has its method wrapped already.
            if definer is cls or (definer is not None and not issubclass(definer, ExactResumeMixin)):
                setattr(cls, name, _wrapped(vars(definer)[name], role))

    def train(
        self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train; ``resume_from_checkpoint=True`` takes the newest whole checkpoint in ``output_dir``.

        Raises:
            ConfigurationError: There is no whole checkpoint, or it does not have the loader's position.
            StateMismatchError: The checkpoint belongs to another loader, or to other arguments of the Trainer.
            RankMismatchError: Ranks have different numbers of microbatches.
            Exception: Whatever the Trainer raises.
        """
        self._loader_states = {}  # those of a call that failed before its loaders were made
        if resume_from_checkpoint:
            found = last_checkpoint(self.args.output_dir or ".") if resume_from_checkpoint is True else None
            if is_own_loader(self.train_dataset) and resume_from_checkpoint is True and found is None:
                raise ConfigurationError(
                    "resume_from_checkpoint", True, f"a whole checkpoint in {self.args.output_dir}; there is none"
                )
            if resume_from_checkpoint is True:
                # The Trainer's own choice may be without a loader's position: a method may return a loader that needs one.
                resume_from_checkpoint = found or _last_of_trainer(self.args.output_dir) or True
            if not isinstance(resume_from_checkpoint, bool):
                # A path is one of a checkpoint to the Trainer, too.
                resume_from_checkpoint = os.fspath(resume_from_checkpoint)
                needed = "train" if is_own_loader(self.train_dataset) else None
                self._loader_states = read_loaders(resume_from_checkpoint, needed=needed)
                self._resumed_checkpoint = resume_from_checkpoint
        self._is_training = True
        try:
            return cast("Any", super()).train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._resumed_checkpoint = self._trained_wrapper = None
            self._is_training, self._marked_step = False, -1

    def get_train_dataloader(self) -> Any:
        """Return the loader that is ``train_dataset``, as the Trainer takes it; else what the Trainer makes."""
        if is_own_loader(self.train_dataset):
            return self._train_wrapper(self.train_dataset)
        _refuse_dataset("train_dataset", self.train_dataset)
        return self._train_wrapper(cast("Any", super()).get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return a loader of this library as the Trainer takes it; else what the Trainer makes."""
        name = eval_dataset if isinstance(eval_dataset, str) else ""
        own = self.eval_dataset
        loader = own[name] if name else own if eval_dataset is None else eval_dataset
        if is_own_loader(loader):
            return self._wrapper(f"eval {name}".strip(), loader)
        _refuse_dataset("eval_dataset", loader)
        return self._wrapper_of("eval", cast("Any", super()).get_eval_dataloader(eval_dataset))

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a loader of this library as the Trainer takes it; else what the Trainer makes."""
        if is_own_loader(test_dataset):
            return self._wrapper("test", test_dataset)
        _refuse_dataset("test_dataset", test_dataset)
        return self._wrapper_of("test", cast("Any", super()).get_test_dataloader(test_dataset))

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Return what the Trainer counts with, and let the loader stand in for the batches that it will step over.

        Raises:
            ConfigurationError: The Trainer got its loader past this class, whose checkpoints would not have its position.
            StateMismatchError: The checkpoint belongs to another loader, or to other arguments of the Trainer.
        """
        if is_own_loader(dataloader) and not isinstance(dataloader, AccelerateDataLoader):
            raise ConfigurationError(
                "get_train_dataloader",
                f"a function that returns a {type(dataloader).__name__}",
                "a method of the Trainer's class, or train_dataset=loader: an attribute of the object hides what makes "
                "the loader's position a part of each checkpoint",
            )
        values: Any = cast("Any", super()).set_initial_training_values(args, dataloader)
        if self._resumed_checkpoint is not None and isinstance(dataloader, AccelerateDataLoader):
            num_updates = values[1]
            global_step = read_global_step(self._resumed_checkpoint)
            num_skipped = global_step % num_updates * args.gradient_accumulation_steps
            # Without a length, the Trainer counts through all epochs.
            if _length(dataloader) is not None and num_skipped != dataloader.step:
                raise StateMismatchError(
                    "step",
                    dataloader.step,
                    num_skipped,
                    f"the loader goes on after {dataloader.step} microbatches of its epoch, and the Trainer after "
                    f"{num_skipped}, which it computes from {global_step} steps of {args.gradient_accumulation_steps} "
                    f"microbatches and {num_updates} steps an epoch: resume with the loader's length, the number of "
                    "ranks and the gradient_accumulation_steps of the run that saved, and from before an epoch that a "
                    "callback ended early (should_epoch_stop)",
                )
            dataloader.stand_in_for(num_skipped)
        return values

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the microbatches of an update: until it is complete, a checkpoint has the position before them."""
        if self._trained_wrapper is not None and self._marked_step != cast("Any", self).state.global_step:
            self._marked_step = cast("Any", self).state.global_step
            self._trained_wrapper.loop.mark()
        return cast("Any", super()).get_batch_samples(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model; into a checkpoint, the loaders' positions too."""
        cast("Any", super()).save_model(output_dir, _internal_call=_internal_call)
        if _internal_call and output_dir is not None and self._wrappers:
            is_incomplete = self._marked_step == cast("Any", self).state.global_step
            states = {
                role: wrapper.state_dict(is_at_mark=is_incomplete and wrapper is self._trained_wrapper)
                for role, wrapper in self._wrappers.items()
            }
            if self.args.should_save:
                num_ranks = None if self.args.save_on_each_node else self.args.world_size
                write_loaders(output_dir, states, num_ranks)

    def _train_wrapper(self, loader: Any) -> Any:
        if isinstance(loader, AccelerateDataLoader) or not is_own_loader(loader):
            return loader
        if self._trained_wrapper is not None:
            return self._trained_wrapper
        if self.args.auto_find_batch_size:
            raise ConfigurationError("auto_find_batch_size", True, "False: the loader decides on the batch size")
        if self._resumed_checkpoint is not None:
            if self.args.ignore_data_skip:
                raise ConfigurationError(
                    "ignore_data_skip",
                    True,
                    "False: the Trainer then counts from the loader's position, and loads nothing",
                )
            if "train" not in self._loader_states:
                read_loaders(self._resumed_checkpoint, needed="train")
        wrapper = self._wrapper("train", loader)
        if self._is_training:
            warn_of_idle_arguments(self, loader)
            self._trained_wrapper = wrapper
        return wrapper

    def _wrapper_of(self, role: str, loader: Any) -> Any:
        """Return a loader that a user's own method returns as the Trainer takes it."""
        if role == "train":
            return self._train_wrapper(loader)
        # For an evaluation, it may be another loader each time: its position is not saved.
        if isinstance(loader, AccelerateDataLoader) or not is_own_loader(loader):
            return loader
        return _checked(wrapper_for(loader, self.accelerator))

    def _wrapper(self, role: str, loader: Any) -> AccelerateDataLoader:
        wrapper = self._wrappers.get(role)
        if wrapper is None or wrapper.loader is not loader:
            wrapper = self._wrappers[role] = wrapper_for(loader, self.accelerator)
        if role in self._loader_states:
            wrapper.load_state_dict(self._loader_states.pop(role))
        return _checked(wrapper)


def _wrapped(own: Callable[..., Any], role: str) -> Callable[..., Any]:
    """Return a user's own method that gives loaders of this library as the Trainer takes them."""

    @wraps(own)
    def method(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        return trainer._wrapper_of(role, own(trainer, *args, **kwargs))  # noqa: SLF001 - a method of the mixin, whose subclass it is

    return method


def _refuse_dataset(argument: str, value: Any) -> None:
    """Raise for a StreamingDataset: a rank's part, of which accelerate would give each rank a part."""
    if stream_source_of(value) is not None:
        raise ConfigurationError(
            argument,
            "a StreamingDataset",
            "StreamingDataLoader(dataset, batch_size=..., collate_fn=...): the Trainer would deal out each rank's part "
            "once more, and lose the rest",
        )


def _length(loader: AccelerateDataLoader) -> int | None:
    try:
        return len(loader)
    except genuine(TypeError):
        return None


def _checked(wrapper: AccelerateDataLoader) -> AccelerateDataLoader:
    """Return a wrapper; raise if ranks have different numbers of microbatches: at the end some would wait for the others."""
    lengths = gather(_length(wrapper))
    if len(set(lengths)) > 1:
        raise RankMismatchError(
            "len(loader)", ", ".join(f"{length} on rank {rank}" for rank, length in enumerate(lengths))
        )
    return wrapper


def _last_of_trainer(output_dir: str) -> str | None:
    if not Path(output_dir).is_dir():
        return None
    return import_module("transformers.trainer_utils").get_last_checkpoint(output_dir)


_logger = logging.getLogger(__name__)

_ARGUMENTS = {
    "data_seed",
    "dataloader_drop_last",
    "dataloader_in_order",
    "dataloader_multiprocessing_context",
    "dataloader_num_workers",
    "dataloader_persistent_workers",
    "dataloader_prefetch_factor",
    "train_sampling_strategy",
}
_COLLATORS = ("default_data_collator", "DataCollatorWithPadding")  # the Trainer's own choice


def warn_of_idle_arguments(trainer: Any, loader: Any) -> None:
    """Warn of what the caller has set without an effect on this loader, and of a batch size that is not the loader's.

    Args:
        trainer: The Trainer that trains on it.
        loader: A loader of this library.
    """
    args = trainer.args
    if args.process_index:
        return
    kind = type(loader).__name__
    values = ((each.name, getattr(args, each.name), each.default) for each in fields(args) if each.name in _ARGUMENTS)
    idle = [f"{name}={value!r}" for name, value, default in values if value != default]
    collator = trainer.data_collator
    name = getattr(collator, "__name__", type(collator).__name__)
    if name not in _COLLATORS:
        idle.append(f"data_collator={name}")
    if idle:
        _logger.warning("without effect: %s. The %s itself batches, shuffles and loads", ", ".join(idle), kind)
    size = getattr(loader, "batch_size", None)
    if type(size) is int and size != args.per_device_train_batch_size:
        _logger.warning(
            "the Trainer's samples per second count per_device_train_batch_size=%d samples for each microbatch, and the "
            "%s has %d: pass per_device_train_batch_size=%d",
            args.per_device_train_batch_size,
            kind,
            size,
            size,
        )


_FILE = "fkat_data_loaders.pt"
_TRAINER_STATE = "trainer_state.json"


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the newest whole checkpoint that a ``Trainer`` with ``ExactResumeMixin`` has written; None: there is none.

    A checkpoint during which the job was killed is passed over.

    Args:
        output_dir: The ``output_dir`` of the ``TrainingArguments``.
    """
    folder = Path(output_dir)
    found = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    }
    return next((str(found[step]) for step in sorted(found, reverse=True) if _is_whole(found[step])), None)


def write_loaders(checkpoint: str | os.PathLike[str], states: Mapping[str, Any], num_ranks: int | None) -> None:
    """Write the states of loaders, by their roles; the file is there as a whole or not at all.

    Args:
        checkpoint: The checkpoint's folder.
        states: The state of each loader.
        num_ranks: Ranks whose random states the folder will have, if it has any; None: those of some ranks.
    """
    path = Path(checkpoint) / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    torch.save({"version": 1, "num_ranks": num_ranks, "loaders": dict(states)}, beside)
    beside.replace(path)


def read_loaders(checkpoint: str | os.PathLike[str], *, needed: str | None) -> dict[str, Any]:
    """Return the states of loaders, by their roles; none if the checkpoint has none, and none is needed.

    Args:
        checkpoint: The checkpoint's folder.
        needed: The role of a loader whose state there must be; None: there need not be any.

    Raises:
        ConfigurationError: The checkpoint does not have the state that is needed.
    """
    path = Path(checkpoint) / _FILE
    states: dict[str, Any] = torch.load(path, weights_only=True)["loaders"] if path.exists() else {}
    if needed is not None and needed not in states:
        raise ConfigurationError(
            "resume_from_checkpoint",
            str(checkpoint),
            f"a checkpoint with the {needed} loader's position in {_FILE}, which a Trainer with ExactResumeMixin writes: "
            "this one does not say where the loader goes on. fkat_data.huggingface.last_checkpoint(output_dir) finds the newest one that does",
        )
    return states


def read_global_step(checkpoint: str | os.PathLike[str]) -> int:
    """Return how many optimizer steps a checkpoint's run had made."""
    return json.loads((Path(checkpoint) / _TRAINER_STATE).read_text())["global_step"]


def _is_whole(checkpoint: Path) -> bool:
    """Return whether all ranks have written all files: the states come first, then random states, then the steps."""
    try:
        read_global_step(checkpoint)
        num_ranks = torch.load(checkpoint / _FILE, weights_only=True)["num_ranks"]
    except genuine(OSError, ValueError, KeyError):
        return False
    # A rank other than the first writes its random state while the first one goes on.
    random_states = list(checkpoint.glob("rng_state*.pth"))
    is_complete = num_ranks is None or len(random_states) in (0, num_ranks)
    return is_complete and all(map(zipfile.is_zipfile, random_states))
