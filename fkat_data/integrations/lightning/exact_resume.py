"""The callback that resumes a Trainer at the microbatch after the last one that it has trained on."""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import STATE_VERSION, check_version
from fkat_data.integrations.lightning.feed import (
    EvaluationFeed,
    FeedPosition,
    FeedState,
    InitialStates,
    TrainFeed,
    fed,
    is_ours,
)
from fkat_data.integrations.lightning.framework import Flavoured, package_of
from fkat_data.plan.state import unsealed
from fkat_data.runtime.distributed import gather

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    Callback = object

_logger = logging.getLogger(__name__)


class ExactResume(Flavoured, Callback):
    """Saves and loads the state of every loader of this library that a Trainer trains with, exactly.

    A checkpoint counts as delivered what was trained on, however far Lightning had fetched; and resuming loads it in
    every case in which Lightning goes on in an epoch or begins one. Evaluations begin where the first one has begun.
    Gradients that wait for an optimizer step are in the checkpoint. Each epoch has its own length: Lightning alone cuts
    a longer one at the length of the first.

    A learning rate finder, a batch size finder and a ``Tuner`` leave the loaders where they were before. With
    ``overfit_batches``, each epoch has the microbatches of the first.

    The state of other loaders that have one is saved and loaded where Lightning would, and after
    ``estimated_stepping_batches`` in ``configure_optimizers`` as well.

    Raises:
        StateMismatchError: A checkpoint is of other loaders.
        ConfigurationError: A loader was made for another number of ranks than the Trainer has.
    """

    base_name = "Callback"

    def __init__(self) -> None:
        super().__init__()
        self._state: FeedState | None = None
        self._gradients: dict[str, Any] = {}
        self._resumed_epoch = 0
        self._initial_states = InitialStates()
        self._has_trained = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stand between the Trainer and its loaders."""
        self._state, self._gradients = None, {}
        self._initial_states, self._has_trained = InitialStates(), False
        for loop in _loops(trainer):
            _intercept(trainer, loop, self._feed_of)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Read where to go on; the loaders may be made already, or not yet."""
        if trainer.state.fn != "fit":
            return
        saved: dict[str, Any] = checkpoint.get("callbacks", {}).get(self.state_key) or {}
        self._state = _state_in(checkpoint, saved, is_counted_in_steps=trainer.max_steps != -1)
        if self._state is None:
            self._begin_again(trainer)
            return
        self._gradients = {} if self._state.is_over else saved.get("gradients", {})
        epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]
        self._resumed_epoch = epochs["processed"] + (self._state.is_over and epochs["processed"] < epochs["started"])
        feed = _train_feed(trainer)
        if feed is not None:
            feed.position.restore(self._state)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Go on where the checkpoint says, if Lightning has begun before it read the checkpoint."""
        feed = _train_feed(trainer)
        if feed is None:
            return
        feed.position.begin_training()
        if feed.position.is_stale:
            iter(trainer.fit_loop._data_fetcher)  # noqa: SLF001 - Lightning offers no other way
        _check_ranks(trainer, feed)
        restore_gradients(pl_module, self._gradients)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Forget the checkpoint: what it says is in training."""
        feed = _train_feed(trainer)
        if self._state is not None and feed is not None:
            restore_accumulation(trainer)
            feed.position.train()
        self._state, self._gradients = None, {}
        self._has_trained = True

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Accumulate as before the checkpoint: one that is saved in this validation has the gradients as well."""
        if self._state is not None:
            restore_accumulation(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write the position of every loader, on all ranks."""
        feed = _train_feed(trainer)
        if feed is None:
            return
        state = feed.take_saved()
        progress = trainer.fit_loop.epoch_loop.batch_progress
        is_trained = progress.current.processed == progress.current.ready
        mend_counts(
            checkpoint["loops"]["fit_loop"],
            has_open_validation=is_validation_open(trainer),
        )
        checkpoint["callbacks"][self.state_key] = {
            "version": STATE_VERSION,
            "loaders": list(state.loaders),
            "ended": list(state.ended),
            "is_over": is_trained and progress.is_last_batch,
            "gradients": accumulated_gradients(trainer, pl_module),
        }

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the Trainer as it was."""
        _leave(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the Trainer as it was, and the loaders of evaluations where they began."""
        if stage == "fit" and not self._has_trained:
            self._begin_again(trainer)
        for loop in _loops(trainer):
            if isinstance(_combined(loop), EvaluationFeed):
                _combined(loop).rewind()
        _leave(trainer)

    def _begin_again(self, trainer: Any) -> None:
        """Bring the loaders back: what was fetched was for trials, in which a Trainer calls no callback of the user's."""
        self._initial_states.go_back()
        feed = _train_feed(trainer)
        if feed is not None:
            feed.position.begin_again()

    def _epoch(self, trainer: Any) -> int:
        """Return the epoch that begins: Lightning may begin it before it has read its own counts in the checkpoint."""
        return trainer.fit_loop.epoch_progress.current.processed if self._state is None else self._resumed_epoch

    def _feed_of(self, trainer: Any, loop: Any, loaders: Any) -> Any:
        is_training = loop is trainer.fit_loop
        combined_class = package_of(trainer).utilities.CombinedLoader
        if not isinstance(loaders, combined_class):
            loaders = combined_class(loaders, "max_size_cycle" if is_training else "sequential")
        before = _combined(loop)
        if not is_training:
            if isinstance(before, EvaluationFeed):
                before.rewind()
            evaluated: EvaluationFeed = fed(loaders, EvaluationFeed)
            evaluated.initial_states = self._initial_states
            return evaluated
        feed: TrainFeed = fed(loaders, TrainFeed)
        feed.initial_states = self._initial_states
        feed.is_made_again = self._has_trained and not trainer.overfit_batches
        feed.epoch = lambda: self._epoch(trainer)
        feed.trainer = trainer
        progress = trainer.fit_loop.epoch_loop.batch_progress
        # Lightning's other fetcher, for training_step(dataloader_iter), keeps no batches.
        feed.position = FeedPosition(
            lambda: progress.total.processed,
            lambda: hasattr(trainer.fit_loop._data_fetcher, "batches"),  # noqa: SLF001 - as above
            self._initial_states.go_back if trainer.overfit_batches else None,
        )
        if self._state is not None:
            feed.position.restore(self._state)
        return feed


def _state_in(checkpoint: dict[str, Any], saved: dict[str, Any], *, is_counted_in_steps: bool) -> FeedState | None:
    """Return where a checkpoint says that training goes on; None if it has no state of a loader."""
    fit_loop = checkpoint["loops"]["fit_loop"]
    epochs = fit_loop["epoch_progress"]["current"]
    batches = fit_loop["epoch_loop.batch_progress"]
    # Lightning takes an epoch that was stopped for one that is over, unless it counts steps.
    is_stopped = not is_counted_in_steps and epochs["ready"] == epochs["started"] == epochs["processed"]
    if not saved:
        loaders = fit_loop["state_dict"].get("combined_loader")
        if not loaders:
            return None
        _logger.warning(
            "the checkpoint was saved without ExactResume: if Lightning did not know the length of its loaders, it counts "
            "one microbatch as delivered that was not trained on"
        )
        return FeedState(loaders, is_over=batches["is_last_batch"] or is_stopped, is_lightnings=True)
    check_version(saved, STATE_VERSION)
    if is_stopped and not saved["is_over"] and batches["current"]["processed"]:
        _logger.info(
            "the epoch was stopped after %d microbatches; Lightning goes on with the next epoch",
            batches["current"]["processed"],
        )
    return FeedState(saved["loaders"], saved["ended"], saved["is_over"] or is_stopped)


def _check_ranks(trainer: Any, feed: TrainFeed) -> None:
    """Refuse loaders that were made before this process had its rank; warn of those that know of no ranks."""
    kwargs: dict[str, Any] = trainer.distributed_sampler_kwargs or {}
    num_ranks, rank = kwargs.get("num_replicas", 1), kwargs.get("rank", 0)
    for loader in (part for combined in feed.flattened for part in _parts(combined)):
        state: dict[str, Any] = unsealed(loader.local_state_dict() if is_ours(loader) else None) or {}
        found = state.get("fingerprint", {}).get("dp_size")
        if found is None and rank and _is_of_first_rank(loader, state):
            _logger.warning(
                "rank %d of %d trains with a %s that knows no rank: it may deliver the same microbatches on all ranks. Give "
                "it this rank's part of the data, and dp_rank",
                rank,
                num_ranks,
                type(loader).__name__,
            )
        if found is not None and found != num_ranks:
            raise ConfigurationError(
                "dp_size",
                found,
                f"{num_ranks}, the number of data-parallel ranks. A loader that is made before Trainer.fit does not "
                "know them: make it in train_dataloader(), or give a function that makes it to fkat_data.lightning."
                "DataModule",
            )


def _parts(loader: Any) -> Iterator[Any]:
    """Yield the loaders that a mixture is of, or a loader itself."""
    mixed: Any = getattr(loader, "dataloaders", None)
    if not isinstance(mixed, Mapping):
        yield loader
        return
    for part in cast("Mapping[Any, Any]", mixed).values():
        yield from _parts(part)


def _is_of_first_rank(loader: Any, state: dict[str, Any]) -> bool:
    """Return whether a loader draws as data-parallel rank 0 does, because it was given no rank."""
    if "fingerprint" in state:
        return state["fingerprint"].get("dp_rank") == 0
    samplers = (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    is_dealt = "num_ranks" in state or any(hasattr(each, "rank") for each in samplers)
    return hasattr(loader, "deal_out") and not loader.dp_rank and not is_dealt


def _loops(trainer: Any) -> list[Any]:
    validation = trainer.fit_loop.epoch_loop.val_loop
    return [trainer.fit_loop, validation, trainer.validate_loop, trainer.test_loop, trainer.predict_loop]


def _combined(loop: Any) -> Any:
    return loop._combined_loader  # noqa: SLF001 - trainer.train_dataloader returns what it combines


def _train_feed(trainer: Any) -> TrainFeed | None:
    feed = _combined(trainer.fit_loop)
    return feed if isinstance(feed, TrainFeed) else None


def _intercept(trainer: Any, loop: Any, feed_of: Any) -> None:
    source = loop._data_source  # noqa: SLF001 - where a loop gets its loaders from; no hook is called there
    own = source.__class__.dataloader  # not what an earlier call has put before it
    source.dataloader = lambda: feed_of(trainer, loop, own(source))


def _leave(trainer: Any) -> None:
    for loop in _loops(trainer):
        vars(loop._data_source).pop("dataloader", None)  # noqa: SLF001 - as above


def accumulated_gradients(trainer: Any, module: Any) -> dict[str, torch.Tensor]:
    """Return the gradients that the next optimizer step needs, by parameter; none if the next one needs none.

    Every rank must call it. Ranks that have gradients of their own get the mean of all, so that the run that goes on
    and the one that resumes add the same.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    trained, is_done = progress.current.processed, progress.is_last_batch
    num_accumulated = trained % trainer.accumulate_grad_batches
    if not module.automatic_optimization or num_accumulated == 0 or (is_done and progress.current.ready == trained):
        return {}
    strategy = trainer.strategy
    is_plain = not (strategy.handles_gradient_accumulation or strategy.restore_checkpoint_after_setup)
    if not is_plain or progress.current.started != trained:
        why = "in a training step" if is_plain else f"under {type(strategy).__name__}"
        _logger.warning(
            "the checkpoint lacks the gradients of %d accumulated microbatches: they cannot be saved %s. "
            "Save after a step of the optimizer",
            num_accumulated,
            why,
        )
        return {}
    parameters = dict(module.named_parameters())
    own = [name for name, parameter in parameters.items() if parameter.grad is not None]
    if trainer.world_size == 1:
        return {name: parameters[name].grad.detach().clone() for name in own}
    found: dict[str, torch.Tensor] = {}
    for name in sorted({name for names in gather(own) for name in names}):
        parameter = parameters[name]
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
        found[name] = strategy.reduce(gradient, reduce_op="mean")
        parameter.grad = found[name].clone()
    return found


def restore_gradients(module: Any, gradients: dict[str, torch.Tensor]) -> None:
    """Give parameters the gradients that ``accumulated_gradients`` returned."""
    parameters = dict(module.named_parameters())
    for name, gradient in gradients.items():
        parameters[name].grad = gradient.to(parameters[name])


def restore_accumulation(trainer: Any) -> None:
    """Accumulate as many microbatches as in the epoch under way: Lightning asks its scheduler when an epoch begins only."""
    for callback in trainer.callbacks:
        if isinstance(callback, package_of(trainer).callbacks.GradientAccumulationScheduler):
            trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(trainer.current_epoch)


# Lightning's own counts leave out a validation that was due or under way, or a part of it. With ``max_steps``, and at the
# start of an epoch, Lightning takes the counts of a finished epoch for those of one under way; with loaders of unknown
# length it trains the next epoch as a part of the finished one. It forgets an epoch's last microbatch that was fetched
# and not trained on.
_LOOP = "epoch_loop."


def is_validation_open(trainer: Any) -> bool:
    """Return whether training goes on with a validation: one that comes after this microbatch, or is under way."""
    loop = trainer.fit_loop.epoch_loop
    if trainer.validating:
        current = loop.val_loop.batch_progress.current
        return current.ready == 0 or current.ready != current.completed
    current = loop.batch_progress.current
    is_hook_after_training = current.ready == current.processed == current.completed + 1
    return is_hook_after_training and loop._should_check_val_fx(trainer.fit_loop._data_fetcher)  # noqa: SLF001 - Lightning's decision


def mend_counts(fit_loop: dict[str, Any], *, has_open_validation: bool) -> None:
    """Make the counts of a checkpoint say what is the case, for Lightning to go on as if it had not stopped.

    Args:
        fit_loop: The checkpoint's entry for the fit loop, which changes.
        has_open_validation: Whether a validation comes first when training goes on.
    """
    batches, epochs = fit_loop[f"{_LOOP}batch_progress"], fit_loop["epoch_progress"]
    current, total = batches["current"], batches["total"]
    if current["processed"] != current["ready"]:
        for counts in (current, total):
            counts["ready"] = counts["started"] = counts["processed"]
        batches["is_last_batch"] = False
    if has_open_validation:
        # The counts of a validation whose first microbatch was begun: Lightning then runs it from its beginning.
        for counts in (current, total):
            counts["completed"] = counts["processed"]
        evaluated = fit_loop[f"{_LOOP}val_loop.batch_progress"]
        num_before = evaluated["total"]["completed"]
        evaluated["total"] = {"ready": num_before + 1, "started": num_before + 1} | dict.fromkeys(
            ("processed", "completed"), num_before
        )
        evaluated["current"] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
        evaluated["is_last_batch"] = False
        return
    if not batches["is_last_batch"]:
        return
    is_epoch_counted = epochs["current"]["processed"] == epochs["current"]["started"]
    if not is_epoch_counted:
        # After its hooks, Lightning itself recognises the end. Epochs may differ in length: the number of microbatches
        # does not say that this one has ended.
        if current["completed"] == current["processed"]:
            return
        for counts in (epochs["total"], epochs["current"]):
            counts["processed"] += 1
        total["completed"] = total["processed"]
        fit_loop[f"{_LOOP}state_dict"]["_batches_that_stepped"] += 1
    for counts in (epochs["total"], epochs["current"]):
        counts["completed"] = counts["processed"]
    current.update(dict.fromkeys(current, 0))
    batches["is_last_batch"] = False
