"""Observation of a loader: counts, times, named ranges, a timeline, a report."""

from fkat_data.observe.durations import Durations
from fkat_data.observe.stages import reading
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.observe.verdict import Verdict

__all__ = ["Durations", "LoaderStatistics", "Verdict", "reading"]
