"""The call that forks a template process from the trainer, at the beginning of its program."""

__all__ = ["fork_template"]


def fork_template() -> None:
    """Fork the process that workers come from from this one now, so that they share its import of torch.

    It is optional, and saves about 140 MB and the second import of torch. Call it once, at the top of the script, after
    its imports and before everything else: before threads, CUDA, ``torch.distributed``, data and the first loader.
    Start the program with a fixed seed of hashes (``PYTHONHASHSEED=0 python train.py``), the same for all ranks.

    Workers have the modules that the script has imported by then, with what it has changed in them by then; else they
    are as workers always are. The process ends with this one. If it ends before, the next worker comes from a new
    template, which is spawned, and the log says so. ``gc.freeze`` is called, here and there: collections of garbage do
    not look at what was there before, until the program ends.

    Raises:
        FkatDataError: It would not be safe, or the hashes' seed is random; the message names the reason and what to do.
            The program may go on without it.
        OSError: The system starts no process.
    """
    # The worker's side, which a trainer needs for this only.
    from fkat_data.worker.template_fork import fork_trainer  # noqa: PLC0415 - as above

    fork_trainer()
