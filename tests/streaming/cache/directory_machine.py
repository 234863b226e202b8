"""Random uses of caches of one directory, for Hypothesis."""

import tempfile
from pathlib import Path

from cache_examples import is_shard
from hypothesis.stateful import RuleBasedStateMachine

from fkat_data.streaming.cache import Cache, CacheBudget


class DirectoryMachine(RuleBasedStateMachine):
    """Caches of one directory."""

    def __init__(self, num_caches):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.directory = Path(self.folder.name) / "cache"
        self.budgets = [CacheBudget([self.directory], None, is_shard) for _ in range(num_caches)]
        self.caches = [Cache(self.directory, budget) for budget in self.budgets]

    def limit_to(self, limit):
        for budget in self.budgets:
            budget.limit_bytes = limit

    def teardown(self):
        self.folder.cleanup()
