"""A DataLoader's numbers, with a verdict that names the arguments of this class."""

import re
from dataclasses import dataclass, replace

from fkat_data.observe import LoaderStatistics, Verdict

__all__ = ["DataLoaderStatistics"]

_TERMS = (
    (r"raise num_shard_prefetches from 0 to 1, so that the next shard .*", "let epochs follow one another sooner"),
    (r"num_(?:shard_prefetches|workers_per_shard) from (?:\d+)", "num_workers from {num_workers}"),
    (r"num_microbatch_prefetches \(-1: as many as help\)", "prefetch_factor (None: as many as help)"),
    (r"num_microbatch_prefetches", "prefetch_factor"),
    (r"multiprocessing=True, so that a worker makes", "num_workers=1 or more, so that workers make"),
)


@dataclass(frozen=True, repr=False)
class DataLoaderStatistics(LoaderStatistics):
    """The numbers of a ``fkat_data.DataLoader``."""

    @property
    def verdict(self) -> Verdict:
        """What limits the loop, and which argument to change."""
        found = super().verdict
        advice = found.advice
        for pattern, term in _TERMS:
            advice = re.sub(pattern, term.format(num_workers=self.num_workers), advice)
        text = found.text.removesuffix(found.advice) + advice if found.advice else found.text
        return replace(found, advice=advice, text=text)
