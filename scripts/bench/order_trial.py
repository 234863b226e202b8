"""Run one trial of planning an epoch on all ranks of one node, and measure the memory of all of them together.

Each rank is a fork of this process, which has imported the library, so that what counts is the order alone. The ranks
keep their plans until every one has its first batch, as ranks that train do.
"""

import importlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from stand_ins import stand_in

_SHARD_SIZE = 4096
_BATCH_SIZE = 32
_SEED = 9176
_LOOK_S = 0.01
_TIMEOUT_S = 100
_MEBIBYTE = 1 << 20

#: Makes a rank's plan and its first batch. Returns what must be kept.
_Plan = Callable[[int], Any]


def trial(contestant: str, count: int, num_ranks: int) -> dict[str, Any]:
    sizes = np.full(-(-count // _SHARD_SIZE), _SHARD_SIZE)
    sizes[-1] = count - _SHARD_SIZE * (len(sizes) - 1)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        tempfile.tempdir = folder
        plan = (_ours if contestant == "ours" else _theirs)(sizes, num_ranks, context)
        go, end, ready = context.Event(), context.Event(), context.Semaphore(0)
        planned = context.Semaphore(0)
        ranks = [context.Process(target=_rank, args=(plan, rank, ready, go, planned, end)) for rank in range(num_ranks)]
        for rank in ranks:
            rank.start()
        for _ in ranks:
            ready.acquire(timeout=_TIMEOUT_S)
        before = _memory(ranks)
        go.set()
        began_s = time.perf_counter()
        peak, num_planned = before, 0
        while num_planned < num_ranks:
            if time.perf_counter() - began_s > _TIMEOUT_S or not all(rank.is_alive() for rank in ranks):
                raise RuntimeError(f"{contestant} has planned {num_planned} of {num_ranks} ranks")
            num_planned += planned.acquire(timeout=_LOOK_S)
            peak = max(peak, _memory(ranks))
        wall_s = time.perf_counter() - began_s
        held = _memory(ranks)
        files = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        end.set()
        for rank in ranks:
            rank.join()
    mebibytes = {"peak": peak - before, "held": held - before, "files": files}
    return {"wall_s": wall_s} | {f"{name}_mib": max(0, size) / _MEBIBYTE for name, size in mebibytes.items()}


def _rank(plan: _Plan, rank: int, ready: Any, go: Any, planned: Any, end: Any) -> None:
    ready.release()
    go.wait()
    kept = plan(rank)
    planned.release()
    end.wait()
    if rank == 0 and isinstance(kept[0], SharedMemory):
        kept[0].unlink()


def _memory(ranks: list[Any]) -> int:
    """Return what the ranks take together: of a page that several map, each has its part."""
    return sum(psutil.Process(rank.pid).memory_full_info().pss for rank in ranks)


def _ours(sizes: Any, num_ranks: int, context: Any) -> _Plan:
    del context
    from fkat_data.streaming import epoch, order  # noqa: PLC0415 - the peers' environment does not have them

    settings = order.OrderSettings((sizes,), shuffle=True, shuffle_algo="py1e")
    shares = order.shares_of([order.StreamWeight()], [int(sizes.sum())], None, _SEED)
    # As a dataset does that is alone, or one of several ranks.
    kept = order.kept_here if num_ranks == 1 else epoch.shared_part

    def plan(rank: int) -> Any:
        grid = order.Grid(1, num_ranks, _BATCH_SIZE)
        planned = order.plan_epoch(settings, shares, order.EpochStart(0, 0, _SEED, 1, 1), grid, kept)
        chunks = epoch.RankBatches(planned, epoch.ResumePoint(), rank, epoch.SampleSkips()).chunks()
        return planned, chunks, next(chunks)

    return plan


def _theirs(sizes: Any, num_ranks: int, context: Any) -> _Plan:
    stand_in("streaming")
    partitions = importlib.import_module("streaming.base.partition")
    shuffles = importlib.import_module("streaming.base.shuffle")
    # The leader of a node computes the whole epoch into shared memory, and the others attach to it.
    queues = [context.SimpleQueue() for _ in range(num_ranks)]
    return partial(_their_plan, partitions, shuffles, sizes, queues)


def _their_plan(partitions: Any, shuffles: Any, sizes: Any, queues: list[Any], rank: int) -> Any:
    if rank == 0:
        num_samples = int(sizes.sum())
        ids = partitions.get_partitions("relaxed", num_samples, 1, 1, len(queues), 1, _BATCH_SIZE, 0)
        order = shuffles.get_shuffle("py1e", sizes, 1, _SEED, 0, max(4_000_000, 1 << 18))
        ids = np.where(ids != -1, order[ids], -1)
        shared = SharedMemory(create=True, size=ids.nbytes)
        everyone = np.ndarray(ids.shape, ids.dtype, shared.buf)
        everyone[:] = ids
        for queue in queues[1:]:
            queue.put((shared.name, ids.shape, ids.dtype.str))
        del ids, order
    else:
        name, shape, dtype = queues[rank].get()
        shared = SharedMemory(name)
        everyone = np.ndarray(shape, dtype, shared.buf)
    first = everyone[0, rank, 0, 0].tolist()
    return shared, everyone, first
