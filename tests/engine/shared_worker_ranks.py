"""A rank of two or three that share workers: it walks at random, beside a loader in process, or is killed.

Called with a folder, and the seeds of walks, or ``first``, ``last`` or ``none`` for which rank is killed, or ``late``,
or ``asleep``, which is the first one then.
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader, WorkerError

warnings.simplefilter("ignore")


KILLS = ("first", "last", "none", "late", "asleep")


class Drawn(Dataset):
    def __init__(self, number="", size=45):
        self.number, self.size = number, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        with Path(os.environ["MADE"]).open("a") as made:
            made.write("x")
        return torch.full((3000,), float(index)) + torch.rand(()) + float(self.number or 0)


class Own(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        part, parts = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(part, 40, parts):
            yield torch.full((3000,), float(index)) + torch.rand(())


def rows(samples):
    return [row for row in samples for _ in range(int(row[0]) % 3)]


def shards(**given):
    workers = {"num_shard_prefetches": 1, "num_workers_per_shard": 2} if "mesh" in given else {"multiprocessing": False}
    factory = DataLoaderFactory(Drawn, batch_size=3)
    return ShardedDataLoader(5, [str(100 * number) for number in range(4)], factory, **workers, **given)


def of_dataset(dataset, **own):
    def make(**given):
        workers = {"num_workers": 2} if "mesh" in given or "window_fn" not in own else {}
        return DataLoader(dataset, 4, seed=3, **own, **workers, **given)

    return make


KINDS = {
    "shuffled": of_dataset(Drawn(), shuffle=True),
    "windows": of_dataset(Drawn(), shuffle=True, window_fn=rows, window_size=8),
    "iterable": of_dataset(Own()),
    "shards": shards,
    "copies": of_dataset(Drawn(), zero_copy=False),
}


class InterruptedCallError(Exception):
    pass


def interrupt(number, frame):
    raise InterruptedCallError


@contextmanager
def interrupted_after(delay_s):
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Walk:
    """Two loaders that are used alike; one shares workers."""

    def __init__(self, kind, seed, rank, mesh):
        self.draw, self.rank = random.Random(f"{kind} {seed}"), rank
        self.loaders = KINDS[kind](mesh=mesh), KINDS[kind]()
        self.iterators = None
        self.states = None
        self.kept = []
        self.calls = []
        self.kind = kind, seed

    def __str__(self):
        return f"{self.kind} {self.calls}"

    def next_of(self, number, delay_s=None):
        loader = self.loaders[number]
        before = loader.epoch, loader.step
        while True:
            try:
                if delay_s is None:
                    return next(self.iterators[number], None)
                with interrupted_after(delay_s):
                    return next(self.iterators[number], None)
            except InterruptedCallError:
                delay_s = None
                if (loader.epoch, loader.step) != before:  # behind the call, which has returned what is lost here
                    assert loader.take_back()

    def take(self):
        if self.iterators is None:
            self.iterators = [iter(loader) for loader in self.loaders]
        # Ranks draw alike, and one of them, or none, is interrupted.
        who, delay_s = self.draw.choice([None, None, None, 0, 1]), self.draw.uniform(1e-4, 5e-3)
        for _ in range(self.draw.choice([1, 3, 10, 60])):
            shared = self.next_of(0, delay_s if who == self.rank else None)
            own = self.next_of(1)
            assert (shared is None) == (own is None), "one has ended"
            if own is None:
                self.iterators = None
                return
            assert torch.equal(shared, own), f"{self}: {shared[:, 0]} instead of {own[:, 0]}, at {self.loaders[1].step}"
            if self.draw.random() < 0.1:
                self.kept = [*self.kept[-2:], (shared, own.clone())]
        assert all(torch.equal(*pair) for pair in self.kept), "what was kept has changed"

    def leave(self):
        self.iterators = None

    def save(self):
        self.states = [loader.local_state_dict() for loader in self.loaders]

    def load(self):
        if self.states is not None:
            for loader, state in zip(self.loaders, self.states, strict=True):
                loader.load_state_dict(state)
            self.iterators = None

    def take_back(self):
        if self.iterators is not None:
            found = [loader.take_back() for loader in self.loaders]
            assert found[0] == found[1]

    def exclude(self):
        if self.kind[0] == "shuffled" and self.states is None:
            excluded = self.draw.sample(range(45), 3)
            for loader in self.loaders:
                loader.exclude(excluded)

    def close(self):
        self.loaders[0].close()
        self.iterators = None

    def run(self, num_calls):
        for _ in range(num_calls):
            calls = [self.take, self.take, self.take, self.leave, self.save, self.load, self.take_back, self.close]
            calls.append(self.exclude)
            call = self.draw.choice(calls)
            self.calls.append(call.__name__)
            call()
            positions = [(loader.epoch, loader.step) for loader in self.loaders]
            if self.iterators is not None:
                assert positions[0] == positions[1], positions
        self.loaders[0].close()


def walks(folder, rank, seeds):
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    signal.signal(signal.SIGALRM, interrupt)
    for kind in KINDS:
        for seed in seeds:
            Walk(kind, seed, rank, mesh).run(12)
    return {"walked": len(KINDS) * len(seeds)}


def killed(folder, rank, who):
    mesh = init_device_mesh("cpu", (1, 3), mesh_dim_names=("dp", "tp"))
    # Of 50 microbatches, "late" has room for 20.
    size, batch_size, limit_bytes = (800, 16, 4 << 20) if who == "late" else (200, 4, None)
    own = [batch.clone() for batch in DataLoader(Drawn(size=size), batch_size, seed=3)]
    loader = DataLoader(
        Drawn(size=size),
        batch_size,
        seed=3,
        mesh=mesh,
        num_workers=2,
        memory_limit_bytes=limit_bytes,
        prefetch_factor=2,
        timeout=5 if who == "asleep" and rank else 0,
    )
    victim, found = {"first": 0, "last": 2}.get(who), {"equal": True, "delivered": 0}
    began_s = time.monotonic()
    try:
        for index, batch in enumerate(loader):
            found["equal"] &= torch.equal(batch, own[index])
            found["delivered"] += 1
            if index == 4 and who == "asleep":
                if rank == 0:
                    wait_for_others(folder, 2)
            elif index == 4:
                dist.barrier()
                if who == "late" and rank == 2:
                    time.sleep(3)
                if rank == victim:
                    os.kill(os.getpid(), signal.SIGKILL)
    except WorkerError as error:
        found["error"] = f"{type(error).__name__}: {error}"
        try:
            next(iter(loader))
        except WorkerError as again:
            found["again"] = f"{type(again).__name__}: {again}"
    return {**found, "took_s": time.monotonic() - began_s}


def wait_for_others(folder, num_ranks):
    """Wait until the other ranks are done: where the first one ends, the others lose what it has not sent."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s and len([*Path(folder).glob("rank*.json")]) < num_ranks:
        time.sleep(0.02)


def main():
    folder, *what = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.environ["MADE"] = f"{folder}/made-{rank}"
    found = killed(folder, rank, what[0]) if what[0] in KILLS else walks(folder, rank, what)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    if what[0] not in KILLS:
        dist.barrier()
        dist.destroy_process_group()
    elif rank == 0:
        wait_for_others(folder, 2 if what[0] == "last" else 3)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
