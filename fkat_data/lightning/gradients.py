"""Gradients that wait for an optimizer step: Lightning saves none in the middle of an accumulation."""

import logging
from typing import Any

import torch

from fkat_data.distributed import gather
from fkat_data.lightning.framework import package_of

__all__ = ["accumulated_gradients", "restore_accumulation", "restore_gradients"]

_logger = logging.getLogger(__name__)


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
            "the checkpoint lacks the gradients of %d accumulated microbatches: they cannot be saved %s. Save where the "
            "optimizer has stepped",
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
