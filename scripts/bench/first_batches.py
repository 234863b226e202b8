"""Measure what passes before a loader's first batch, against torch's forked and forkserver workers.

- ``rows``: a small map-style dataset, in batches of 32; ``jpegs``: files to decode; ``shards``: a ``ShardedDataLoader``
  over one ``DataLoader``; ``stream``: a ``StreamingDataset`` of local MDS shards. Each right after the constructor, and
  after 3 s in which the trainer makes a model.
- ``memmap``, ``pairs``, ``collate``: what the dataset or its ``collate_fn`` holds: a memory map of 512 MiB, a million
  tuples of a path and a label, a model of 200 MB. The first batch of three epochs, each with new workers.
- ``package``: a dataset from a package that takes 2 s of CPU to import, and a loader for each of three phases.

Each trial is a new process that has imported both libraries, and the package, before the clock starts. CPU is that of all
processes until none computes, without the other work's.
"""

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import held
import measure
import origins
import torch
from items import BATCH_SIZE, Source, make_jpegs
from measure import Settings, Table, medians
from process_tree import ProcessTree
from workloads import ShardSamples, shard_loader

_KINDS = ("rows", "jpegs", "shards", "stream")
_EPOCHS = ("memmap", "pairs", "collate")
_PACKAGE = "package"
_NUM_WORKERS = 2
_NUM_EPOCHS = 3
_NUM_JPEGS = 1024
_ELSEWHERE_S = 3.0
_PACKAGE_CPU_S = 2.0
_MODEL_BYTES = 200_000_000
_SMALL_BYTES = 1 << 20
_SETTLED_S, _LONGEST_S = 0.5, 60.0
_TARGETS = "2 times torch's fork, or 0.2 s"


def trial(kind: str, contestant: str, busy: int, folder: str, scale: float, wait_s: float = 0.0) -> dict[str, Any]:
    importlib.import_module("fkat_data.streaming")
    importlib.import_module("torch.utils.data")
    with ExitStack() as closed:
        tree = closed.enter_context(ProcessTree())
        closed.enter_context(measure.busy_processes(busy))
        if kind == _PACKAGE:
            return _of_phases(contestant, folder, scale)
        return (
            _of_epochs(kind, contestant, folder, scale, tree)
            if kind in _EPOCHS
            else _of_first(kind, contestant, folder, wait_s, tree)
        )


def _of_first(kind: str, contestant: str, folder: str, wait_s: float, tree: ProcessTree) -> dict[str, Any]:
    make = _makers(kind, contestant, folder)
    begun_cpu_s, begun_s = tree.cpu_s(), time.perf_counter()
    loader = make()
    constructed_s = time.perf_counter()
    elsewhere_cpu_s = _elsewhere(wait_s)
    asked_s = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first_s = time.perf_counter() - asked_s + constructed_s - begun_s
    cpu_s = _settled_cpu_s(tree) - begun_cpu_s - elsewhere_cpu_s
    del batches
    origins.close(loader)
    return {"constructed_s": constructed_s - begun_s, "first_s": first_s, "cpu_s": cpu_s}


def _makers(kind: str, contestant: str, folder: str) -> Any:
    """Return what makes the loader; the dataset is there before the clock starts."""
    module, own = origins.loader_options(contestant)
    is_ours = contestant in origins.OURS
    options = {**own, "num_workers": _NUM_WORKERS}
    if kind == "stream":
        streaming = importlib.import_module("fkat_data.streaming")
        dataset = streaming.StreamingDataset(local=str(Path(folder, "stream")), shuffle=True, batch_size=BATCH_SIZE)
        loader_type = streaming.StreamingDataLoader if is_ours else module.DataLoader
        return partial(loader_type, dataset, batch_size=BATCH_SIZE, **options)
    if kind == "shards":
        if is_ours:
            factory = partial(shard_loader, "tokens", 1000)
            return partial(
                module.ShardedDataLoader, 0, ["0", "1", "2"], factory, num_shard_prefetches=_NUM_WORKERS, **own
            )
        return partial(module.DataLoader, ShardSamples("tokens", 1000), batch_size=None, **options)
    dataset = (
        held.Rows("array", _SMALL_BYTES, folder) if kind == "rows" else Source("normalized", folder, 0, 1, 0.0).whole()
    )
    return partial(module.DataLoader, dataset, batch_size=BATCH_SIZE, shuffle=True, **options)


def _elsewhere(wait_s: float) -> float:
    """Make layers of a model until the time is over; return the CPU seconds of this thread."""
    until_s, begun_cpu_s = time.perf_counter() + wait_s, time.thread_time()
    while time.perf_counter() < until_s:
        torch.nn.Linear(1024, 1024)
    return time.thread_time() - begun_cpu_s


def _of_epochs(kind: str, contestant: str, folder: str, scale: float, tree: ProcessTree) -> dict[str, Any]:
    options: dict[str, Any] = {"shuffle": True, "batch_size": BATCH_SIZE}
    if kind == "memmap":
        dataset: Any = held.Rows("memmap", int(scale * held.HELD_BYTES), folder)
    elif kind == "pairs":
        dataset = held.Pairs(int(scale * held.NUM_PAIRS))
    else:
        dataset = list(range(1000))
        options["collate_fn"] = held.Model(int(scale * _MODEL_BYTES)).collate
    before_bytes = origins.memory_bytes()
    found: dict[str, Any] = {}
    begun_cpu_s = tree.cpu_s()
    begun_s = time.perf_counter()
    loader = origins.map_style(contestant, dataset, _NUM_WORKERS, **options)
    for epoch in range(_NUM_EPOCHS):
        batches = iter(loader)
        next(batches)
        found[f"first_{epoch}_s"] = time.perf_counter() - begun_s
        if epoch == 0:
            _settled_cpu_s(tree)
            found["memory_mb"] = (origins.memory_bytes() - before_bytes) / 1e6
        for _ in zip(range(20), batches, strict=False):
            pass
        del batches
        begun_s = time.perf_counter()
    found["cpu_s"] = _settled_cpu_s(tree) - begun_cpu_s
    origins.close(loader)
    return found


def _of_phases(contestant: str, folder: str, scale: float) -> dict[str, Any]:
    imports = Path(folder, f"imports-{os.getpid()}-{time.monotonic_ns()}")
    os.environ[held.IMPORTS] = str(imports)
    imports.touch()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    del scale  # the package has its own
    package = importlib.import_module(held.PACKAGE)
    found: dict[str, Any] = {}
    for phase in range(_NUM_EPOCHS):
        begun_s = time.perf_counter()
        loader = origins.map_style(contestant, package.Numbers(), _NUM_WORKERS, batch_size=BATCH_SIZE)
        batches = iter(loader)
        next(batches)
        found[f"first_{phase}_s"] = time.perf_counter() - begun_s
        for _ in batches:
            pass
        del batches
        origins.close(loader)
    found["num_imports"] = sum(int(line) != os.getpid() for line in imports.read_text(encoding="utf-8").split())
    return found


def _settled_cpu_s(tree: ProcessTree) -> float:
    """Wait until no process computes, and return the CPU seconds of all so far."""
    deadline_s, before_s = time.monotonic() + _LONGEST_S, -1.0
    while time.monotonic() < deadline_s:
        used_s = tree.cpu_s()
        if used_s - before_s < 0.02:
            return used_s
        before_s = used_s
        time.sleep(_SETTLED_S)
    raise RuntimeError(f"the workers still compute after {_LONGEST_S:.0f} s")


def run(settings: Settings) -> Iterator[Table]:
    scale = min(1.0, settings.scale)
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        _make(settings, folder, scale)
        for kind in settings.wanted_workloads(_KINDS):
            yield _firsts(settings, kind, folder, scale)
        for kind in settings.wanted_workloads((*_EPOCHS, _PACKAGE)):
            yield _epochs(settings, kind, folder, scale)


def _make(settings: Settings, folder: str, scale: float) -> None:
    if settings.wanted_workloads(["jpegs"]):
        make_jpegs(folder, "files", max(2 * BATCH_SIZE, int(scale * _NUM_JPEGS)), 1)
    if settings.wanted_workloads(["stream"]):
        from fkat_data.streaming import MDSWriter  # noqa: PLC0415 - as in changed_import

        with MDSWriter(out=str(Path(folder, "stream")), columns={"number": "int"}) as writer:
            for number in range(10_000):
                writer.write({"number": number})
    if settings.wanted_workloads([_PACKAGE]):
        held.make_package(folder, scale * _PACKAGE_CPU_S)


def _firsts(settings: Settings, kind: str, folder: str, scale: float) -> Table:
    rows: list[list[str]] = []
    wait_s = scale * _ELSEWHERE_S
    for busy, at_once in origins.variants_of(origins.contestants(settings), settings.busy, kind=kind, folder=folder):
        both = {name: {**each, "scale": scale} for name, each in at_once.items()}
        later = {f"{name}, later": {**each, "wait_s": wait_s} for name, each in both.items()}
        done = measure.in_turn(settings, "first_batches", both | later)
        for name in both:
            now, then = medians(done[name]), medians(done[f"{name}, later"])
            row = [str(busy), name, f"{1e3 * now('constructed_s'):.0f}"]
            row += [f"{each('first_s'):.2f}" for each in (now, then)]
            rows.append([*row, f"{now('cpu_s'):.2f}"])
    headers = [
        "busy",
        "",
        "constructor, ms",
        "first batch at once, s",
        f"after {wait_s:.0f} s of other work, s",
        "CPU, s",
    ]
    return Table(f"The first batch, {kind}, {_NUM_WORKERS} workers (at most {_TARGETS})", headers, rows)


def _epochs(settings: Settings, kind: str, folder: str, scale: float) -> Table:
    rows: list[list[str]] = []
    last = "num_imports" if kind == _PACKAGE else "memory_mb"
    names = origins.contestants(settings)
    for busy, variants in origins.variants_of(names, settings.busy, kind=kind, folder=folder, scale=scale):
        for name, done in measure.in_turn(settings, "first_batches", variants).items():
            firsts = measure.cells(done, **{f"first_{number}_s": ".2f" for number in range(_NUM_EPOCHS)})
            rest = {last: ".0f"} if kind == _PACKAGE else {last: ".0f", "cpu_s": ".2f"}
            rows.append([str(busy), name, *firsts, *measure.cells(done, **rest)])
    what = "phase" if kind == _PACKAGE else "epoch"
    headers = ["busy", "", *(f"{what} {number}, s" for number in range(_NUM_EPOCHS))]
    headers += (
        ["imports outside the trainer"] if kind == _PACKAGE else ["memory beside the dataset's, MB (PSS)", "CPU, s"]
    )
    return Table(f"The first batch of each {what}, {kind}, {_NUM_WORKERS} workers", headers, rows)
