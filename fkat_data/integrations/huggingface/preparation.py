"""``accelerator.prepare`` for loaders of this library."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from weakref import ref

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fkat_data.errors import ConfigurationError, FkatDataError, StateMismatchError
from fkat_data.errors.arguments import STATE_VERSION, check_version
from fkat_data.integrations.huggingface.accelerated import accelerated, data_ranks, mover_to, rest_or_next, with_end
from fkat_data.runtime.distributed import gather
from fkat_data.types import ResumableLoader, TicketedLoader, tell_epoch, with_present_weights

_logger = logging.getLogger(__name__)


class TrackedLoop(IterableDataset[Any]):
    """A dataset of a loader's microbatches that tracks the loop over it: the loader's state after each that the loop has received.

    Args:
        loader: Any loader of this library.
        device: Where the microbatches go; None: they stay where they are.
        non_blocking: Whether copies to the device are asynchronous.

    Attributes:
        loader: The same.
        step: Microbatches of the epoch that the loop has received.
        num_stand_ins: Empty batches for the next ``skip_first_batches`` to step over.
    """

    def __init__(self, loader: ResumableLoader, device: torch.device | None, *, non_blocking: bool) -> None:
        self._device = device
        self._non_blocking = non_blocking
        self.loader: Any = loader
        self.step: int = 0
        self.num_stand_ins: int = 0
        self._loaded_step: int | None = None
        self._state: Any = None
        # The state that ``mark`` asked for, and the step; None until a microbatch comes after it.
        self._marked: tuple[Any, int] | None = None
        self._is_to_mark = False

    def __iter__(self) -> Iterator[Any]:
        """Yield what ``skip_first_batches`` of accelerate iterates: an empty batch for each that it drops, then the rest."""
        for _ in range(self.num_stand_ins):
            yield {}
        yield from self.microbatches()

    def microbatches(self) -> Iterator[Any]:
        """Begin an epoch, or the rest of one, as accelerate follows it."""
        move = mover_to(self._device, non_blocking=self._non_blocking)
        num_in_last_round = getattr(self.loader, "num_in_last_round", None)
        return accelerated(self._with_end(move), None, num_in_last_round() if num_in_last_round else 0)

    def _with_end(self, move: Callable[[Any], Any] | None) -> Iterator[tuple[Any, bool]]:
        """Yield each microbatch, moved, and whether it is the last."""
        may_be_over, self.num_stand_ins = self._loaded_step == 0, 0
        self._set_epoch()
        self.step, self._loaded_step = self._loaded_step or 0, None
        num_workers = getattr(self.loader, "num_workers", 0)
        with_states = rest_or_next(self._with_states, may_be_over=may_be_over, num_workers=num_workers)
        for (microbatch, state), is_last in with_end(with_states):
            moved = microbatch if move is None else move(microbatch)
            # Samplers begin the next epoch by another set_epoch(): behind the last one, the state is there.
            is_next = is_last and bool(samplers_of(self.loader))
            reached = self._reached() if is_next else state
            if self._is_to_mark:
                self._marked, self._is_to_mark = (self._state, self.step), False
            # Last of all: if something before is interrupted, the loop does not have this microbatch.
            self._state, self.step = reached, 0 if is_last else self.step + 1
            yield moved, is_last

    def mark(self) -> None:
        """Remember the state before the next microbatch."""
        self._marked, self._is_to_mark = None, True

    def state_dict(self, *, is_at_mark: bool = False) -> dict[str, Any]:
        """Return the state after the last microbatch that each rank's loop has received. A collective.

        Args:
            is_at_mark: Return the state before the first microbatch that came after ``mark``.

        Raises:
            FkatDataError: The loader has no state here.
        """
        state, step = self._state, self.step
        if is_at_mark and self._marked is not None:
            state, step = self._marked
        if state is None:
            state = self._reached()
        if isinstance(state, FkatDataError):
            raise state
        state = with_present_weights(self.loader, state)
        return {"version": STATE_VERSION, "step": step, "loader": self.loader.merge_state_dicts(gather(state))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved position: the next iteration begins there.

        Raises:
            StateMismatchError: It is no such state, or belongs to another plan.
        """
        if not isinstance(state_dict, Mapping) or not {"version", "step", "loader"} <= set(state_dict):
            raise StateMismatchError("loader", "<missing>", "<a state that fkat_data.huggingface saved>")
        check_version(state_dict, STATE_VERSION)
        self.loader.load_state_dict(state_dict["loader"])
        self.step = self._loaded_step = self.num_stand_ins = state_dict["step"]
        self._state = self._marked = None

    def _with_states(self) -> Iterator[tuple[Any, Any]]:
        """Begin an iteration; yield each microbatch, and the loader's state after it."""
        iterator = iter(self.loader)
        self._state = self._reached()
        return ((microbatch, self._reached()) for microbatch in iterator)

    def _set_epoch(self) -> None:
        """Set the epoch of samplers and dataset, as loops do for a ``DataLoader``: to the loader's own."""
        samplers = samplers_of(self.loader)
        if samplers:
            epoch = self.loader._session.next_epoch(self.loader)  # noqa: SLF001 - it has samplers: it is a DataLoader
            tell_epoch((*samplers, self.loader.dataset), epoch)

    def _reached(self) -> Any:
        """Return the loader's own state; or the error that says why there is none, for a caller that asks."""
        try:
            return self.loader.local_state_dict()
        except FkatDataError as error:
            return error


def samplers_of(loader: Any) -> list[Any]:
    """Return the samplers that a ``fkat_data.DataLoader`` was made with; of other loaders, nothing."""
    if not isinstance(loader, DataLoader) or not hasattr(cast("Any", loader), "deal_out"):
        return []
    batch_sampler = cast("Any", loader).batch_sampler
    samplers = [cast("Any", loader).sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]
    return [sampler for sampler in samplers if sampler is not None]


class AccelerateDataLoader(DataLoader[Any]):
    """A torch ``DataLoader`` over a loader of this library, for accelerate; it leaves the microbatches as they are.

    - accelerate asks whether a batch is the epoch's last: one more microbatch is taken ahead. The state does not count
      it.
    - After a load, scripts and trainers step over the batches that they had before
      (``accelerator.skip_first_batches``). The loader is there already, so they get empty batches to step over.

    Args:
        loader: Any loader of this library.
        device: Where accelerate wants the microbatches; None: they stay where they are.
        non_blocking: Whether copies to the device are asynchronous.
    """

    #: Of accelerate: not to be dealt out to the ranks once more, should somebody prepare it.
    _is_accelerate_prepared = True

    def __init__(self, loader: Any, device: torch.device | None = None, *, non_blocking: bool = False) -> None:
        if device is not None and callable(getattr(loader, "set_device", None)):
            loader.set_device(device)
            device = None
        self.loader = loader
        """The loader; one microbatch ahead of the loop during an epoch."""
        self.loop = TrackedLoop(loader, device, non_blocking=non_blocking)
        """The state of the loop; an iterator holds it, too."""
        # A generator of its own: an iteration that steps over batches draws no number from the trainer's.
        super().__init__(self.loop, batch_size=None, collate_fn=_unchanged, generator=torch.Generator())

    @property
    def step(self) -> int:
        """Microbatches of the epoch that the loop has received."""
        return self.loop.step

    def __iter__(self) -> Any:
        """Begin an epoch, or the rest of one after ``load_state_dict``."""
        return self.loop.microbatches()

    def __len__(self) -> int:
        """Return the microbatches of an epoch.

        Raises:
            TypeError: That is not known.
        """
        return len(self.loader)

    def stand_in_for(self, num_skipped: int) -> None:
        """Give the next ``skip_first_batches`` this many empty batches; without this, those before the loaded position."""
        self.loop.num_stand_ins = num_skipped

    def state_dict(self, *, is_at_mark: bool = False) -> dict[str, Any]:
        """Return the state after the last microbatch that the loop has received; collective if the loader's is.

        Args:
            is_at_mark: Return the state before the first microbatch that came after ``mark``.
        """
        return self.loop.state_dict(is_at_mark=is_at_mark)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved position: the next iteration begins there.

        Raises:
            StateMismatchError: It is no such state, or belongs to another plan; nothing has changed then.
        """
        self.loop.load_state_dict(state_dict)


def is_own_loader(value: object) -> bool:
    """Return whether a value is a loader of this library: it gives a rank its part, and has an exact state."""
    if isinstance(value, (torch.nn.Module, Dataset, Sampler)) or not isinstance(value, ResumableLoader):
        return False
    return any(base.__module__.partition(".")[0] == "fkat_data" for base in type(value).__mro__)


def _unchanged(microbatch: Any) -> Any:
    return microbatch


def prepare(accelerator: Any, *objects: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
    """Prepare what ``accelerator.prepare`` does, and loaders of this library besides; return all in the same order.

    A prepared loader delivers each rank's own part once, and of a ``fkat_data.DataLoader`` its share of the batches, on
    the accelerator's device. ``accelerator.save_state()`` and ``load_state()`` include its position, to the microbatch.
    ``accelerator.accumulate`` knows its last microbatch, and ``accelerator.skip_first_batches`` loads nothing that was
    delivered before. It takes one microbatch ahead.

    Every rank calls this. A loader that the accelerator has already is returned as before.

    Args:
        accelerator: An ``accelerate.Accelerator``.
        objects: Models, optimizers, schedulers, torch's DataLoaders, and loaders of this library.
        device_placement: Whether to move each object; None: as the accelerator does.

    Returns:
        The prepared objects; a single one by itself.

    Raises:
        ConfigurationError: This machine cannot deliver to the accelerator's device; a ``fkat_data.DataLoader`` cannot be
            dealt out to the ranks; or the caller commits a loader's microbatches.
        Exception: Whatever ``accelerator.prepare`` raises.
    """
    moves = [None] * len(objects) if device_placement is None else list(device_placement)
    own = {index: item for index, item in enumerate(objects) if is_own_loader(item)}
    wrappers: dict[int, Any] = {}
    for index, loader in own.items():
        wrappers[index] = _registered_loader(loader, accelerator, moves[index])
    others = [index for index in range(len(objects)) if index not in own]
    if others:
        # As a whole: an optimizer follows its model, a scheduler its optimizer.
        given = None if device_placement is None else [moves[index] for index in others]
        prepared = accelerator.prepare(*(objects[index] for index in others), device_placement=given)
        wrappers |= zip(others, prepared if len(others) > 1 else (prepared,), strict=True)
    results = tuple(wrappers[index] for index in range(len(objects)))
    return results[0] if len(results) == 1 else results


class _RegisteredLoader:
    """The object that an ``Accelerator`` saves for a loader, for as long as the program has the loader, or an iterator of it.

    The accelerator itself never drops what is registered, not even in ``free_memory``: it must not keep workers alive.
    """

    def __init__(self, wrapper: AccelerateDataLoader) -> None:
        self._wrapper = ref(wrapper)
        self._loop = ref(wrapper.loop)

    @property
    def wrapper(self) -> AccelerateDataLoader | None:
        return self._wrapper()

    @property
    def is_gone(self) -> bool:
        return self._loop() is None

    def state_dict(self) -> dict[str, Any]:
        loop = self._loop()
        return {} if loop is None else loop.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        loop = self._loop()
        if loop is not None:
            loop.load_state_dict(state_dict)


def _registered_loader(loader: Any, accelerator: Any, is_moved: bool | None) -> AccelerateDataLoader:
    """Return a loader's wrapper, the one that the accelerator saves if it has one; drop those that are gone."""
    if isinstance(loader, TicketedLoader) and loader.has_tickets:
        raise ConfigurationError("commit", "manual", "'delivery', with accelerate, which takes microbatches ahead")
    registered: list[Any] = accelerator._custom_objects  # noqa: SLF001 - accelerate has no other way to drop one
    registered[:] = [each for each in registered if not (isinstance(each, _RegisteredLoader) and each.is_gone)]
    wrappers = [each.wrapper for each in registered if isinstance(each, _RegisteredLoader)]
    found = next((wrapper for wrapper in wrappers if wrapper is not None and loader in (wrapper, wrapper.loader)), None)
    if found is not None:
        return found
    wrapper = loader if isinstance(loader, AccelerateDataLoader) else wrapper_for(loader, accelerator, is_moved)
    accelerator.register_for_checkpointing(_RegisteredLoader(wrapper))
    return wrapper


def wrapper_for(loader: Any, accelerator: Any, is_moved: bool | None = None) -> AccelerateDataLoader:
    """Return a loader's wrapper for an accelerator. A collective: every rank must call it.

    Args:
        loader: A loader of this library.
        accelerator: Says which device, and how many ranks there are.
        is_moved: Whether microbatches go to its device; None: as the accelerator says.
    """
    device: torch.device = accelerator.device
    if is_moved is None:
        is_moved = accelerator.device_placement
    if accelerator.num_processes > 1:
        _give_part(loader, accelerator)
    if isinstance(loader, DataLoader) and hasattr(cast("Any", loader), "deal_out"):
        # The wrapper takes over from accelerator.prepare().
        loader._is_accelerate_prepared = False  # noqa: SLF001 - an attribute of accelerate's
    # On the CPU, microbatches stay the views that they are.
    target = device if is_moved and device.type != "cpu" else None
    return AccelerateDataLoader(loader, target, non_blocking=accelerator.non_blocking)


def _give_part(loader: Any, accelerator: Any) -> None:
    """Deal a ``fkat_data.DataLoader`` out to the ranks; warn if another loader delivers the same on all of them.

    Raises:
        ConfigurationError: The loader cannot be dealt out.
    """
    if hasattr(loader, "deal_out"):
        num_ranks, rank = data_ranks(accelerator)
        loader.deal_out(num_ranks, rank, even_batches=accelerator.even_batches, split_batches=accelerator.split_batches)
        return
    plan: Any = loader.local_state_dict().get("fingerprint")
    own = (plan["dp_rank"], plan["shards"]) if plan and {"dp_rank", "shards"} <= set(plan) else None
    plans = gather(own)
    if own is not None and set(plans) == {own}:
        _logger.warning(
            "each of the %d ranks will deliver the same samples: nothing deals out the shards. Wrap the sampler: "
            "DistributedDataParallelShardSampler(sampler, accelerator.num_processes, accelerator.process_index). "
            "Ignore this if all ranks share their data on purpose, as tensor-parallel ranks do",
            len(plans),
        )
