"""From a saved state to sample ids: the samples that a rank reads next, for any number of ranks.

A state is a ``ResumePoint``; ``Epochs`` plans what is left of its epoch, by the pure functions of ``order``;
``RankBatches`` is this rank's part of the plan, without what ``SampleSkips`` leaves out. ``World`` says which rank this
is. Processes share the resume point (``shared_resume``) and long orders (``shared_orders``). Begin with ``Epochs``.
"""

from fkat_data.streaming.epoch.epochs import Epochs, WeightSchedule
from fkat_data.streaming.epoch.rank_batches import RankBatches, SampleSkips, in_groups
from fkat_data.streaming.epoch.shared_orders import shared_part
from fkat_data.streaming.epoch.shared_resume import ResumePoint
from fkat_data.streaming.epoch.world import World

__all__ = [
    "Epochs",
    "RankBatches",
    "ResumePoint",
    "SampleSkips",
    "WeightSchedule",
    "World",
    "in_groups",
    "shared_part",
]
