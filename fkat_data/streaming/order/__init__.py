"""The order of an epoch's samples, as pure functions: they open no file and read no environment."""

from fkat_data.streaming.order.block import BlockShuffle
from fkat_data.streaming.order.shuffle import ReferenceShuffle
from fkat_data.streaming.order.spans import Spanner

__all__ = ["BlockShuffle", "ReferenceShuffle", "Spanner"]
