"""Lightning's counts in a checkpoint, mended where Lightning would misread them after a restart.

It leaves out a validation that was due or under way, or a part of it. With ``max_steps``, and at the start of an epoch,
it takes the counts of a finished epoch for those of one under way; with loaders of unknown length it trains the next
epoch as a part of the finished one. It forgets an epoch's last microbatch that was fetched and not trained on.
"""

import math
from typing import Any

__all__ = ["is_validation_open", "mend_counts"]

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


def mend_counts(fit_loop: dict[str, Any], num_training_batches: float, *, has_open_validation: bool) -> None:
    """Make the counts of a checkpoint say what is the case, for Lightning to go on as if it had not stopped.

    Args:
        fit_loop: The checkpoint's entry for the fit loop, which changes.
        num_training_batches: Microbatches in an epoch; infinite if that is not known.
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
        # Lightning itself recognises the end by the number of microbatches, and after its hooks.
        if not math.isinf(num_training_batches) or current["completed"] == current["processed"]:
            return
        for counts in (epochs["total"], epochs["current"]):
            counts["processed"] += 1
        total["completed"] = total["processed"]
        fit_loop[f"{_LOOP}state_dict"]["_batches_that_stepped"] += 1
    for counts in (epochs["total"], epochs["current"]):
        counts["completed"] = counts["processed"]
    current.update(dict.fromkeys(current, 0))
    batches["is_last_batch"] = False
