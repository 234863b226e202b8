"""Measure what the order of an epoch takes on one node: memory of all its ranks, and time, ours and MosaicML's in turn."""

from typing import Any

from measure import Result, Settings, Table, in_turn, medians

_COUNT = 10**7
_RANKS = (1, 8)
_PEER = "mosaicml-streaming"


def run(settings: Settings) -> Result:
    """Plan an epoch of py1e on one rank and on eight."""
    contestants = settings.wanted_contestants(["ours", *([_PEER] if settings.peers else [])])
    variants: dict[str, tuple[str, dict[str, Any]]] = {}
    for num_ranks in _RANKS:
        for contestant in contestants:
            arguments = {"contestant": contestant, "num_ranks": num_ranks}
            variants[f"{num_ranks} {contestant}"] = (
                "order_trial",
                arguments | {"count": settings.count(_COUNT, at_least=100_000)},
            )
    found = in_turn(settings, variants, pythons=settings.pythons(name for name in variants if _PEER in name))
    rows: list[list[str]] = []
    for name, trials in found.items():
        median = medians(trials)
        num_ranks, contestant = name.split(" ", 1)
        numbers = [median(key) for key in ("peak_mib", "held_mib", "files_mib")]
        rows.append([num_ranks, contestant, *(f"{number:,.0f}" for number in numbers), f"{median('wall_s'):.2f}"])
    title = f"py1e, {settings.count(_COUNT, at_least=100_000):,} samples in shards of 4,096, one node"
    headers = [
        "ranks",
        "library",
        "peak of all ranks, MiB",
        "held by all, MiB",
        "files, MiB",
        "to all first batches, s",
    ]
    return Result([Table(title, headers, rows)], [trial for trials in found.values() for trial in trials])
