"""Measure what a cache's limit costs: a file that evicts another, an epoch through a small cache, and the disk it holds."""

from typing import Any

from measure import Result, Settings, Table, in_turn, medians

_FILES = (100, 10_000, 100_000)
_SHARDS = 5_000
#: By name: the limit of an epoch, as a share of its shards; None: no limit.
_LIMITS: dict[str, float | None] = {"no limit": None, "holds all shards": 2.0, "holds 7 % of the shards": 0.07}


def run(settings: Settings) -> Result:
    """Run the four measurements."""
    tables: list[Table] = []
    trials: list[dict[str, Any]] = []

    def measured(variants: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        found = in_turn(settings, {name: ("cache_trial", arguments) for name, arguments in variants.items()})
        trials.extend(trial for done in found.values() for trial in done)
        return found

    found = measured({"calls": {"case": "calls", "count": settings.count(500)}})
    keys = ("has_us", "touch_us", "get_us", "make_ms", "count_ms", "list_ms")
    headers = ["has, µs", "touch, µs", "get, µs", "make 1 MiB, ms", "count 10,000 files, ms", "evict the first of them"]
    tables.append(Table("A cache without a limit", headers, [[f"{medians(found['calls'])(key):.1f}" for key in keys]]))

    found = measured(
        {
            f"{num_files:,}": {"case": "evicting", "num_files": settings.count(num_files, at_least=20), "count": 500}
            for num_files in _FILES
        }
    )
    rows = [
        [name, *(f"{medians(done)(key):.2f}" for key in ("median_ms", "mean_ms", "first_ms"))]
        for name, done in found.items()
    ]
    headers = ["files in the cache", "median, ms a file", "mean", "the first, which counts and lists all"]
    tables.append(Table("New files of 100 bytes, each of which evicts one", headers, rows))

    num_shards = settings.count(_SHARDS, at_least=40)
    found = measured(
        {name: {"case": "epoch", "num_shards": num_shards, "share": share} for name, share in _LIMITS.items()}
    )
    rows = [
        [name, f"{medians(done)('wall_s'):.1f}", f"{medians(done)('cpu_s'):.1f}", f"{medians(done)('fds'):.0f}"]
        for name, done in found.items()
    ]
    headers = ["limit", "s", "CPU s", "descriptors at most"]
    tables.append(Table(f"An epoch over {num_shards:,} shards of one sample", headers, rows))

    found = measured({"held": {"case": "held"}})
    rows = [[f"{medians(found['held'])(key):.2f}" for key in ("limit_mb", "held_mb", "data_mb")]]
    headers = ["limit, MB", "disk held at most, MB", "dataset, MB"]
    tables.append(Table("400 samples of 20 kB, two shuffled epochs, each sample kept", headers, rows))
    return Result(tables, trials)
