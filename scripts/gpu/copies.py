"""Measure how fast segments are copied to the device, compared with a plain copy of page-locked memory."""

import mmap
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from workloads import Shards, num_bytes

from fkat_data import ShardedDataLoader
from fkat_data.device import page_lock
from fkat_data.device.choice import mover_for

_NUM_COPIES = 300
_GIBIBYTE = 1 << 30
_TARGET_RATIO = 0.9


def run(num_workers: int, repeats: int) -> tuple[str, dict[str, Any]]:
    """Return a table and the numbers: GiB a second for microbatches of 16 MiB."""
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
        locks_ms = _locks_ms()

        def ours() -> None:
            mover.finish(mover.begin(microbatch))

        for _ in range(repeats):
            found["plain, pinned"].append(_rate(plain))
            found["ours"].append(_rate(ours))
        # 1 for each segment that was locked.
        page_locked = [int(is_locked) for is_locked in page_lock._locked.values()]  # noqa: SLF001
    ratio = median(found["ours"]) / median(found["plain, pinned"])
    lines = [
        f"**Copies of 16 MiB to the device, GiB/s, medians of {repeats}**",
        "",
        "| plain, pinned | ours | ratio | target (at least) |",
        "|---|---|---|---|",
        f"| {median(found['plain, pinned']):.2f} | {median(found['ours']):.2f} | {ratio:.3f} | {_TARGET_RATIO} |",
    ]
    lines += [
        "",
        f"Page locks: {page_locked}. For 16 MiB, ms to lock and to unlock while the device computes for 20 ms: {locks_ms}",
    ]
    return "\n".join(lines), {"gib_per_s": found, "ratio": ratio, "page_locked": page_locked, "locks_ms": locks_ms}


def _locks_ms() -> list[tuple[float, float]]:
    """Return the times to lock and to unlock memory while the device computes for 20 ms."""
    times = []
    for _ in range(5):
        memory = mmap.mmap(-1, num_bytes("blocks"))
        memory.write(bytes(num_bytes("blocks")))
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        torch.cuda._sleep(40_000_000)  # noqa: SLF001 - has no public name
        began_s = time.perf_counter()
        torch.cuda.cudart().cudaHostRegister(address, num_bytes("blocks"), 1)
        locked_s = time.perf_counter()
        torch.cuda.cudart().cudaHostUnregister(address)
        times.append((round(1e3 * (locked_s - began_s), 3), round(1e3 * (time.perf_counter() - locked_s), 3)))
        torch.cuda.synchronize()
    return times


def _rate(copy: Callable[[], None]) -> float:
    for _ in range(20):
        copy()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(_NUM_COPIES):
        copy()
    torch.cuda.synchronize()
    return _NUM_COPIES * num_bytes("blocks") / _GIBIBYTE / (time.perf_counter() - began_s)
