"""Keeps a template process between tests: their workers are forks of it, and no test waits for its imports again."""

from leavings import SHARED

__all__ = ["KeptTemplate"]


class KeptTemplate:
    """A lease of the template process that a loader would use now."""

    def __init__(self):
        self._lease = None

    def renew(self):
        """Keep the template that a loader would use now; one that has died or is of another environment ends."""
        from fkat_data import ShardedDataLoader
        from fkat_data.worker.template_process import template_lease

        lease = template_lease(None)
        template = None if lease is None else lease.template()
        self.release()
        self._lease = lease
        if template is not None and ("process", template.pid) not in SHARED:
            SHARED.add(("process", template.pid))
            with ShardedDataLoader(0, ["0"], list) as loader:
                next(iter(loader))  # it has imported everything before a test looks at the clock

    def release(self):
        """Keep none."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
