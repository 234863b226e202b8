"""The order of an epoch's samples, as pure functions: they open no file and read no environment.

From streams' weights (``weights``) to the samples that an epoch takes of each (``sampling``), their order (``block``,
``shuffle``, ``own_shuffle``), which rank reads what when (``partition``), and global batches (``batching``).
Begin with ``plan_epoch`` in ``epoch_order``, which puts these together.
"""

from fkat_data.streaming.order.batching import BATCHING_METHODS
from fkat_data.streaming.order.block import BlockShuffle
from fkat_data.streaming.order.epoch_order import SHUFFLES, EpochPlan, EpochStart, OrderSettings, plan_epoch
from fkat_data.streaming.order.own_shuffle import MakeShuffle, Shuffle, register_shuffle
from fkat_data.streaming.order.partition import PARTITIONS, EvenPartition, Grid, partitioned
from fkat_data.streaming.order.sampling import KeyedSelection, StreamSamples, chosen_per_shard, fair_counts, selected
from fkat_data.streaming.order.shuffle import REFERENCE_SHUFFLES, ReferenceShuffle, in_memory
from fkat_data.streaming.order.spans import Spanner, divided
from fkat_data.streaming.order.weights import StreamWeight, shares_of

__all__ = [
    "BATCHING_METHODS",
    "PARTITIONS",
    "REFERENCE_SHUFFLES",
    "SHUFFLES",
    "BlockShuffle",
    "EpochPlan",
    "EpochStart",
    "EvenPartition",
    "Grid",
    "KeyedSelection",
    "MakeShuffle",
    "OrderSettings",
    "ReferenceShuffle",
    "Shuffle",
    "Spanner",
    "StreamSamples",
    "StreamWeight",
    "chosen_per_shard",
    "divided",
    "fair_counts",
    "in_memory",
    "partitioned",
    "plan_epoch",
    "register_shuffle",
    "selected",
    "shares_of",
]
