"""Measure what four ranks in two groups of two cost, whose groups need the same: with workers of their own, and shared.

An item is decompressed to 0.6 MB, as an image of floats has; a microbatch has 64. Each rank has four workers. CPU seconds
and items are those of all processes of the job over the measured epochs, behind an epoch that warms up. Memory is the
largest proportional set size of all of them up to then; that of the loaders is what comes on top of the ranks' own.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from measure import Settings, Table, in_turn, medians
from process_tree import ProcessTree
from torch.distributed.device_mesh import init_device_mesh

_NUM_RANKS, _NUM_GROUPS, _NUM_WORKERS = 4, 2, 4
_BATCH_SIZE, _ITEM_BYTES = 64, 4 * 3 * 224 * 224  # an image of floats
_NUM_EPOCHS = 3
_TARGETS = {"items": 1.05, "cpu_s": 0.6, "peak_mb": 0.7}
_LONGEST_S = 110.0


class Compressed(torch.utils.data.Dataset[torch.Tensor]):
    """Items that take a worker a millisecond or two; each that is made leaves a byte in a file."""

    def __init__(self, size: int, made: str) -> None:
        noise = np.random.default_rng(1).integers(0, 16, _ITEM_BYTES, np.uint8)
        self._data, self._size, self._made = zlib.compress(noise.tobytes(), 1), size, made

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> torch.Tensor:
        with Path(self._made).open("ab") as made:
            made.write(b"x")
        item = torch.frombuffer(bytearray(zlib.decompress(self._data)), dtype=torch.uint8)
        item[0] = index % 256
        return item


def trial(contestant: str, num_steps: int) -> dict[str, Any]:
    """Run the ranks as processes below this one."""
    with tempfile.TemporaryDirectory() as folder, ProcessTree() as tree, socket.create_server(("127.0.0.1", 0)) as port:
        number = str(port.getsockname()[1])
        port.close()
        job = {"WORLD_SIZE": str(_NUM_RANKS), "LOCAL_WORLD_SIZE": str(_NUM_RANKS), "OMP_NUM_THREADS": "1"}
        job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": number}
        command = [sys.executable, __file__, folder, contestant, str(num_steps)]
        ranks = [subprocess.Popen(command, env={**os.environ, **job, "RANK": str(rank)}) for rank in range(_NUM_RANKS)]
        try:
            _await(Path(folder), "begun")
            begun_mb = tree.peak_mb()
            Path(folder, "make").touch()
            _await(Path(folder), "warm")
            made, cpu_s, began_s = _num_made(folder), tree.cpu_s(), time.perf_counter()
            Path(folder, "go").touch()
            _await(Path(folder), "done")
            took_s = time.perf_counter() - began_s
            needed = _NUM_EPOCHS * num_steps * _NUM_GROUPS * _BATCH_SIZE
            found = {
                "cpu_s": tree.cpu_s() - cpu_s,
                "items": (_num_made(folder) - made) / needed,
                "peak_mb": tree.peak_mb(),
                "loaders_mb": tree.peak_mb() - begun_mb,
                "step_ms": 1000 * took_s / (_NUM_EPOCHS * num_steps),
            }
            Path(folder, "end").touch()
            for rank in ranks:
                rank.wait(_LONGEST_S)
        finally:
            for rank in ranks:
                rank.kill()
        return found


def _num_made(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).glob("made-*"))


def _await(folder: Path, word: str, number: int = _NUM_RANKS) -> None:
    deadline_s = time.monotonic() + _LONGEST_S
    while len(list(folder.glob(f"{word}*"))) < number:
        if time.monotonic() > deadline_s:
            raise TimeoutError(word)
        time.sleep(0.01)


def run(settings: Settings) -> list[Table]:
    """Compare the two."""
    num_steps = settings.count(10)
    variants = {name: {"contestant": name, "num_steps": num_steps} for name in ("own", "shared")}
    own, shared = (medians(done) for done in in_turn(settings, "mesh", variants).values())
    rows = [
        ["items made, of those that two ranks need", f"{own('items'):.2f}", f"{shared('items'):.2f}", "", "1.05"],
        *(
            [text, f"{own(name):,.1f}", f"{shared(name):,.1f}", f"{shared(name) / own(name):.2f}", target]
            for text, name, target in (
                ("CPU seconds of the job", "cpu_s", f"{_TARGETS['cpu_s']}"),
                ("memory of the loaders, MB", "loaders_mb", ""),
                ("largest memory of the job, MB", "peak_mb", f"{_TARGETS['peak_mb']}"),
                ("time of a step, ms", "step_ms", ""),
            )
        ),
    ]
    title = f"Four ranks in two groups, {_NUM_WORKERS} workers each, {_NUM_EPOCHS * num_steps} steps"
    return [Table(title, ["", "own workers", "shared workers", "ratio", "target"], rows)]


def _rank(folder: str, contestant: str, num_steps: int) -> None:
    from fkat_data import DataLoader  # noqa: PLC0415 - of the ranks alone

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (_NUM_GROUPS, _NUM_RANKS // _NUM_GROUPS), mesh_dim_names=("dp", "tp"))
    Path(folder, f"begun-{rank}").touch()
    _await(Path(folder), "make", 1)
    dataset = Compressed(num_steps * _BATCH_SIZE * _NUM_GROUPS, f"{folder}/made-{rank}")
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": _NUM_WORKERS, "mesh": mesh}
    loader = DataLoader(dataset, _BATCH_SIZE, share_workers=contestant == "shared", **options)
    _epoch(loader)
    Path(folder, f"warm-{rank}").touch()
    _await(Path(folder), "go", 1)
    sums = [_epoch(loader) for _ in range(_NUM_EPOCHS)]
    Path(folder, f"done-{rank}").touch()
    _await(Path(folder), "end", 1)
    Path(folder, f"sums-{rank}").write_text(json.dumps(sums))
    dist.destroy_process_group()


def _epoch(loader: Any) -> int:
    found = 0
    for batch in loader:
        found += int(batch[:, ::4096].sum())
        dist.barrier()
    return found


if __name__ == "__main__":
    _rank(sys.argv[1], sys.argv[2], int(sys.argv[3]))
