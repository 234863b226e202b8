"""Statistics in the text format of Prometheus."""

from collections.abc import Iterable, Iterator, Mapping

from fkat_data.export.metrics import METRICS
from fkat_data.observe.durations import SHORTEST_S, Durations
from fkat_data.observe.statistics import DURATIONS, LoaderStatistics

HISTOGRAMS = {
    "waiting": ("fkat_data_waiting_seconds", "How long the trainer waited for a microbatch"),
    "making": ("fkat_data_making_seconds", "How long a worker took to make a microbatch, stored bytes included"),
}
"""The names of histograms, and what they are."""

# From 15 microseconds to four minutes, in steps of two.
_DOUBLINGS = range(4, 29)


def prometheus_text(several: Iterable[tuple[Mapping[str, str], LoaderStatistics]]) -> str:
    """Return the statistics of loaders as lines of text.

    Args:
        several: Each loader's labels and statistics.
    """
    found = [(_labels(labels), statistics) for labels, statistics in several]
    lines: list[str] = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.text}.", f"# TYPE {metric.name} {_kind(is_total=metric.is_total)}"]
        lines += [f"{metric.name}{{{labels}}} {getattr(statistics, metric.field)}" for labels, statistics in found]
    for name in DURATIONS:
        title, text = HISTOGRAMS[name]
        lines += [f"# HELP {title} {text}.", f"# TYPE {title} histogram"]
        for labels, statistics in found:
            lines += _histogram(title, labels, getattr(statistics, name))
    return "\n".join([*lines, ""])


def _histogram(title: str, labels: str, durations: Durations) -> Iterator[str]:
    comma = "," if labels else ""
    for doublings, count in zip(_DOUBLINGS, durations.num_up_to(_DOUBLINGS), strict=True):
        yield f'{title}_bucket{{{labels}{comma}le="{SHORTEST_S * 2**doublings!r}"}} {count}'
    yield f'{title}_bucket{{{labels}{comma}le="+Inf"}} {durations.num}'
    yield f"{title}_sum{{{labels}}} {durations.total_s!r}"
    yield f"{title}_count{{{labels}}} {durations.num}"


def _kind(*, is_total: bool) -> str:
    return "counter" if is_total else "gauge"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
