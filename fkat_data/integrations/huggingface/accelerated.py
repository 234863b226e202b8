"""One iteration as accelerate follows it: where it ends, and on which device its batches are needed.

``Accelerator.accumulate`` and ``Accelerator.gather_for_metrics`` ask the iteration under way whether this batch is its
last. Only modules that run under accelerate import this one.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from math import prod
from typing import Any, TypeVar, cast

import torch

try:
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device  # pyright: ignore[reportUnknownVariableType] - it has no annotations
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "accelerate":
        raise
    raise ImportError("fkat_data.huggingface needs accelerate: pip install 'accelerate>=1.15'") from None

_T = TypeVar("_T")
_END: Any = object()


def accelerated(
    batches: Iterable[tuple[_T, bool]], move: Callable[[Any], Any] | None = None, num_in_last_round: int = 0
) -> Iterator[_T]:
    """Yield batches while accelerate knows which of them is the last.

    Args:
        batches: Each batch, and whether it is the last one.
        move: What moves each; None: they stay where they are.
        num_in_last_round: Samples that ``gather_for_metrics`` keeps of the last batches of all ranks; 0: all, because
            none was added to fill them up.
    """
    iteration = _Iteration()
    iteration.begin()
    iteration.remainder = num_in_last_round
    try:
        for batch, iteration.end_of_dataloader in batches:
            yield batch if move is None else move(batch)
    finally:
        iteration.end()


def mover_to(device: torch.device | None, *, non_blocking: bool = False) -> Callable[[Any], Any] | None:
    """Return what moves a batch to a device as accelerate does; None: it stays where it is."""
    return None if device is None else partial(cast("Any", send_to_device), device=device, non_blocking=non_blocking)


def with_end(items: Iterable[_T]) -> Iterator[tuple[_T, bool]]:
    """Yield each item, and whether it is the last; takes the next one before.

    Raises:
        Exception: The items', after those before it.
    """
    iterator = iter(items)
    item = next(iterator, _END)
    while item is not _END:
        try:
            following = next(iterator, _END)
        except Exception:
            yield item, False
            raise
        yield item, following is _END
        item = following


def rest_or_next(begin: Callable[[], Iterable[_T]], *, may_be_over: bool, num_workers: int) -> Iterator[_T]:
    """Yield the rest of an epoch; of the next one, if a state was loaded that left nothing of it.

    A loop that counts epochs for itself counts that one as over, and would take an empty rest for the next one. An
    iteration draws no number from torch's generator when it begins: a resumed run begins one more.

    Args:
        begin: Begins an epoch, or the rest of one.
        may_be_over: Whether the loaded position may be an epoch's end.
        num_workers: Workers of torch's, which start with the first item; 0: items are made here, and may draw.
    """
    is_empty = True
    for item in _begun(begin, num_workers):
        is_empty = False
        yield item
    if is_empty and may_be_over:
        yield from _begun(begin, num_workers)


def _begun(begin: Callable[[], Iterable[_T]], num_workers: int) -> Iterator[_T]:
    state = torch.get_rng_state()
    try:
        iterator = iter(begin())
        first = list(islice(iterator, 1 if num_workers else 0))
    finally:
        torch.set_rng_state(state)
    return chain(first, iterator)


def data_ranks(accelerator: Any) -> tuple[int, int]:
    """Return how many ranks of an ``Accelerator`` share the data, and which of them this process is.

    Ranks that hold parts of one model, or of one sequence, get the same data.
    """
    num_together = 1
    mesh = accelerator.torch_device_mesh
    if mesh is not None:
        sizes = dict(zip(mesh.mesh_dim_names, mesh.mesh.shape, strict=True))
        num_together = prod(sizes.get(name, 1) for name in ("tp", "cp", "sp"))
    return accelerator.num_processes // num_together, accelerator.process_index // num_together


class _Iteration(DataLoaderStateMixin):
    """The iteration under way, as accelerate asks for it."""

    def __init__(self) -> None:
        self.gradient_state = GradientState()
