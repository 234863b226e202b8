"""Batches that fill a token budget, padding included, with the same number of batches on every rank."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
from torch.utils.data import Sampler

from fkat_data.arguments import choice, integer, saved_integer
from fkat_data.datasets.dataset_state import checked_state
from fkat_data.datasets.lengths import as_lengths
from fkat_data.datasets.windows import Windows, in_steps, whole_steps
from fkat_data.description import Described
from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.permutation import permutation

__all__ = ["TokenBudgetBatchSampler"]

_STATE_VERSION = 1


class TokenBudgetBatchSampler(Described, Sampler[list[int]]):
    """A batch sampler that groups samples of similar length, as many as fit ``max_tokens`` once padded.

    An epoch is cut into windows. Within a window, the samples are sorted by length and cut into batches. Every
    ``world_size`` neighbouring batches form a step, with one batch for each rank, so that all ranks work for about the
    same time; the steps are shuffled. If the number of batches is not a multiple of ``world_size``, the fullest ones
    are halved. So every rank has the same number of batches, and every sample appears once. The only exception is a
    window with too few samples to halve: up to ``world_size - 1`` of its longest are dropped in that epoch.

    A window's plan is a function of (seed, epoch, window) and the lengths: every rank computes the same plan without
    communication if ``lengths`` and ``seed`` are the same on each.

    ``iter()`` yields the rest of the current epoch; a full pass ends at the start of the next one. After a loop that
    ended early, the next loop starts the next epoch. A new iterator ends the older ones. ``len()`` returns the number
    of this rank's batches in the epoch that the next loop yields, and plans all of them.

    Args:
        lengths: Length of each sample in tokens, as a list, an array or a tensor; or a dataset whose
            ``sort_key(index)`` returns the length.
        max_tokens: Budget of a batch: its number of samples times the length of its longest one.
        window_size: Number of samples to plan together, at least ``world_size``; an epoch's remainder is spread over
            its windows. It should hold many times ``world_size`` batches. Larger windows need less padding but are less
            random.
        rank: Index of this rank, from 0 to ``world_size - 1``.
        world_size: Number of ranks.
        shuffle: Whether to shuffle in each epoch. If false, windows follow the dataset's order, and steps are in order
            of length.
        seed: Any integer, the same on every rank. None, for one rank only: draw one from torch's global CPU generator,
            as in a ``BufferSortedDataset``.
        pad_to_multiple_of: Multiple that the collate function rounds padded lengths up to.
        max_batch_size: Maximum number of samples in a batch; None: no limit besides ``max_tokens``.
        too_long: What to do with samples that are longer than ``max_tokens``: "raise" or "skip".

    Raises:
        ConfigurationError: An argument is invalid, a sample is too long, or there are fewer samples than ranks.
    """

    def __init__(
        self,
        lengths: Any,
        max_tokens: int,
        window_size: int = 4096,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int | None = None,
        pad_to_multiple_of: int = 1,
        max_batch_size: int | None = None,
        too_long: Literal["raise", "skip"] = "raise",
    ) -> None:
        self._max_tokens = integer("max_tokens", max_tokens, minimum=1)
        multiple = integer("pad_to_multiple_of", pad_to_multiple_of, minimum=1)
        self._max_batch_size = None if max_batch_size is None else integer("max_batch_size", max_batch_size, minimum=1)
        choice("too_long", too_long, ("raise", "skip"))
        found = as_lengths("lengths", lengths)
        # Rounded up as by the collate function; an empty sample still takes a row.
        self._lengths = np.maximum(-(-found // multiple) * multiple, 1)
        fitting = np.flatnonzero(self._lengths <= self._max_tokens)
        if len(fitting) < len(found) and too_long == "raise":
            longest = int(self._lengths.argmax())
            raise ConfigurationError(
                f"lengths[{longest}]", int(found[longest]), f"at most max_tokens = {max_tokens}, or too_long='skip'"
            )
        self._windows = Windows(fitting, window_size, world_size, shuffle=shuffle, seed=seed)
        self._rank = integer("rank", rank, minimum=0, maximum=self._windows.world_size - 1)
        self._settings = {
            "max_tokens": self._max_tokens,
            "window_size": self._windows.window_size,
            "world_size": self._windows.world_size,
            "shuffle": self._windows.shuffle,
            "pad_to_multiple_of": multiple,
            "max_batch_size": self._max_batch_size,
            "num_samples": len(fitting),
        }
        self.num_skipped: int = len(found) - len(fitting)
        """Number of samples that are skipped because they are too long."""
        self._position = (0, 0)  # epoch, batches yielded in it
        self._iterator: object = None  # the newest one; None after set_epoch or load_state_dict
        self._count: tuple[tuple[int, int], int] | None = None  # (seed, epoch) -> number of batches

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("epoch", self._position[0]),
            ("step", self._position[1]),
            ("max_tokens", self._max_tokens),
            ("samples", len(self._lengths)),
            ("rank", self._rank),
        ]

    @property
    def seed(self) -> int:
        """Seed of every epoch's order, given or drawn."""
        return self._windows.seed

    def __len__(self) -> int:
        return self._num_batches(self._start()[0])

    def __iter__(self) -> Iterator[list[int]]:
        self._position = epoch, index = self._start()
        self._iterator = iterator = object()
        return self._walk(iterator, epoch, index)

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` yield this epoch from its start.

        A position that ``load_state_dict`` has just set in the same epoch is kept: trainers call both on a resume.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigurationError: ``epoch`` is negative or not an integer.
        """
        epoch = integer("epoch", epoch, minimum=0)
        if self._iterator is not None or epoch != self._position[0]:
            self._position = (epoch, 0)
            self._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """Return position and settings as plain values: the same on all ranks at the same batch."""
        epoch, index = self._position
        return {"version": _STATE_VERSION, "epoch": epoch, "index": index, "seed": self.seed, **self._settings}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next ``iter()`` continue at a saved position.

        Raises:
            StateMismatchError: The state has other settings, another seed than ``seed``, or a position past the end of
                this sampler's batches. The position then stays unchanged.
        """
        state = checked_state(state_dict, self.state_dict(), "epoch", "index", "seed")
        seed = saved_integer("seed", state["seed"])
        epoch, index = (saved_integer(field, state[field], minimum=0) for field in ("epoch", "index"))
        if seed != self.seed and self._windows.is_seed_given:
            raise StateMismatchError("seed", seed, self.seed, "pass seed=None to use the saved seed")
        own_seed, self._windows.seed = self.seed, seed
        num_batches = self._num_batches(epoch)
        if index > num_batches:
            self._windows.seed = own_seed
            hint = f"epoch {epoch} has fewer batches; check that the lengths are the same"
            raise StateMismatchError("index", index, f"<at most {num_batches}>", hint)
        self._position = (epoch, index) if index < num_batches else (epoch + 1, 0)
        self._iterator = None

    def _start(self) -> tuple[int, int]:
        epoch, index = self._position
        return (epoch + 1, 0) if self._iterator is not None and index > 0 else (epoch, index)

    def _walk(self, iterator: object, epoch: int, index: int) -> Iterator[list[int]]:
        done = 0
        for window in range(self._windows.num_windows):
            plan = self._plan(epoch, window)
            is_last_window = window == self._windows.num_windows - 1
            for batch in plan[max(0, index - done) :]:
                if self._iterator is not iterator:
                    raise StaleIteratorError(
                        f"this iterator over epoch {epoch} has ended: a newer iterator, set_epoch() or "
                        "load_state_dict() replaced it"
                    )
                index += 1
                # Before the yield: a state that the caller saves while it processes this batch counts it as yielded.
                self._position = (epoch + 1, 0) if is_last_window and index == done + len(plan) else (epoch, index)
                yield batch
            done += len(plan)

    def _num_batches(self, epoch: int) -> int:
        name = (self.seed, epoch)
        if self._count is None or self._count[0] != name:
            plans = (self._plan(epoch, window) for window in range(self._windows.num_windows))
            self._count = (name, sum(map(len, plans)))
        return self._count[1]

    def _plan(self, epoch: int, window: int) -> list[list[int]]:
        windows = self._windows
        indices = windows.items(epoch, window)
        indices = indices[np.argsort(self._lengths[indices], kind="stable")]
        batches = whole_steps(self._cut(indices.tolist(), self._lengths[indices].tolist()), windows.world_size)
        order = None
        if windows.shuffle:
            num_steps = len(batches) // windows.world_size
            order = permutation(num_steps, b"fkat_data steps", self.seed, epoch, window)
        return in_steps(batches, windows.world_size, self._rank, order)

    def _cut(self, indices: list[int], lengths: list[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        start = 0
        while start < len(indices):
            limit = len(indices) - start
            if self._max_batch_size is not None:
                limit = min(limit, self._max_batch_size)
            # Lengths are sorted, so the tokens of a batch grow with the index of its last sample.
            stop = bisect_right(
                range(start, start + limit),
                self._max_tokens,
                key=lambda last, start=start: lengths[last] * (last - start + 1),
            )
            batches.append(indices[start : start + stop])
            start += stop
        return batches
