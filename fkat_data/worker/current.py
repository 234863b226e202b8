"""Which worker of its loader this process is."""

_entered: list[int] = []


def enter_worker(worker_index: int) -> None:
    """Record that this process is a worker.

    Args:
        worker_index: The worker's number among its loader's.
    """
    _entered[:] = [worker_index]


def current_worker() -> int | None:
    """Return the number of this worker among its loader's; None in a process that is none."""
    return _entered[0] if _entered else None
