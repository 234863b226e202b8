"""Keeps a template process between tests: their workers are forks of it, and no test waits for its imports again."""

from leavings import SHARED

__all__ = ["KeptTemplate"]


class KeptTemplate:
    """The template process that a loader would use now, and the end of all others.

    Args:
        guard: Hears of each loader that looks for a template: whether one is there is a matter of what ran before.
    """

    def __init__(self, guard):
        self._guard = guard
        self._is_watched = False

    def renew(self):
        """Keep the template that a loader would use now; one of another environment ends."""
        from fkat_data import ShardedDataLoader
        from fkat_data.worker.process import forkserver
        from fkat_data.worker.process.forkserver import find_template, uses_template

        if not self._is_watched:
            self._is_watched = True
            registry = forkserver._Registry
            registry.find = self._guard.watched(registry.find)
        template = find_template() if uses_template(None) else None
        self.end_others({template.pid} if template is not None else set())
        if template is not None and ("process", template.pid) not in SHARED:
            SHARED.add(("process", template.pid))
            with ShardedDataLoader(0, ["0"], list) as loader:
                next(iter(loader))  # it has imported everything before a test looks at the clock

    @staticmethod
    def end_others(kept=None):
        """End the templates that do not have these process ids; None: those that no test has shared."""
        from fkat_data.worker.process import forkserver, importer_process

        importer_process.end_importers()
        templates = forkserver._registry.templates
        for template in list(templates):
            if template.pid not in kept if kept is not None else ("process", template.pid) not in SHARED:
                templates.remove(template)
                template.dismiss()
                template.join(10)
