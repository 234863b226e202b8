"""How fast are the copies out of segments, against a plain copy of page-locked memory?"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from workloads import Shards, num_bytes

from fkat_data import ShardedDataLoader
from fkat_data.device.choice import mover_for

__all__ = ["run"]

_NUM_COPIES = 300
_GIBIBYTE = 1 << 30
_TARGET_RATIO = 0.9


def run(num_workers: int, repeats: int) -> tuple[str, dict[str, Any]]:
    """Return a table and the figures: GiB a second for microbatches of 16 MiB."""
    del num_workers
    plain_source = torch.full((num_bytes("blocks"),), 1, dtype=torch.uint8).pin_memory()
    side = torch.cuda.Stream()

    def plain() -> None:
        with torch.cuda.stream(side):
            plain_source.to("cuda", non_blocking=True)

    found: dict[str, list[float]] = {"plain, pinned": [], "ours": []}
    with ShardedDataLoader(0, ["shard"], Shards("blocks")) as loader:
        microbatch = next(iter(loader))
        mover = mover_for("cuda")

        def ours() -> None:
            mover.finish(mover.begin(microbatch))

        for _ in range(repeats):
            found["plain, pinned"].append(_rate(plain))
            found["ours"].append(_rate(ours))
    ratio = median(found["ours"]) / median(found["plain, pinned"])
    lines = [
        f"**Copies of 16 MiB to the device, GiB/s, medians of {repeats}**",
        "",
        "| plain, pinned | ours | ratio | target (at least) |",
        "|---|---|---|---|",
        f"| {median(found['plain, pinned']):.2f} | {median(found['ours']):.2f} | {ratio:.3f} | {_TARGET_RATIO} |",
    ]
    return "\n".join(lines), {"gib_per_s": found, "ratio": ratio}


def _rate(copy: Callable[[], None]) -> float:
    for _ in range(20):
        copy()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(_NUM_COPIES):
        copy()
    torch.cuda.synchronize()
    return _NUM_COPIES * num_bytes("blocks") / _GIBIBYTE / (time.perf_counter() - began_s)
