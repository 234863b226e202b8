"""The example of a lost node: two agents of torchrun on this machine, one of them killed with all that it started."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from free_ports import free_port

ROOT = Path(__file__).parents[2]
NUM_FILES, NUM_LINES = 16, 24


def agent(folder, port, *, is_host):
    """Start a node: an agent of torchrun that starts one rank."""
    conf = f"is_host={int(is_host)},last_call_timeout=2,join_timeout=60,read_timeout=20"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"),
        *("--rdzv-id=lost", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={conf}"),
        *("--local-addr=127.0.0.1", ROOT / "docs" / "examples" / "lost_node" / "train.py"),
        *(f"data={folder / 'data'}", f"checkpoint={folder / 'checkpoint.pt'}", f"num_samples={NUM_FILES * NUM_LINES}"),
    ]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    output = (folder / f"output-{int(is_host)}.txt").open("w")
    with output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def family(process):
    """Return a process and those below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(process.pid)
        return [found, *found.children(recursive=True)]
    return []


def kill(processes):
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def used(checkpoint):
    """Return how many samples the checkpoint's model has used, and on how many ranks."""
    if not checkpoint.exists():
        return 0, 0
    content = torch.load(checkpoint, weights_only=True)
    return int(content["model"].sum()), content["num_ranks"]


def test_a_lost_node_costs_no_sample(processes, tmp_path):
    (tmp_path / "data").mkdir()
    for file in range(NUM_FILES):
        lines = [json.dumps({"id": file * NUM_LINES + line}) for line in range(NUM_LINES)]
        (tmp_path / "data" / f"{file:02}.jsonl").write_text("\n".join(lines))
    port, checkpoint = free_port(), tmp_path / "checkpoint.pt"
    nodes = [agent(tmp_path, port, is_host=True), agent(tmp_path, port, is_host=False)]
    try:
        deadline = time.monotonic() + 90
        num_used, num_ranks = 0, 0
        while num_used < NUM_FILES * NUM_LINES // 4 or num_ranks < 2:
            if time.monotonic() > deadline or nodes[0].poll() is not None:
                pytest.fail((tmp_path / "output-1.txt").read_text())
            time.sleep(0.05)
            num_used, num_ranks = used(checkpoint)
        kill(family(nodes[1]))
        num_at_kill, _ = used(checkpoint)
        nodes[0].wait(90)
    finally:
        kill([process for node in nodes for process in family(node)])
        for node in nodes:
            node.wait()
    output = (tmp_path / "output-1.txt").read_text()
    assert nodes[0].returncode == 0, output
    assert num_at_kill < NUM_FILES * NUM_LINES
    content = torch.load(checkpoint, weights_only=True)
    assert content["num_ranks"] == 1
    assert content["model"].tolist() == [1] * NUM_FILES * NUM_LINES
    assert f"{NUM_FILES * NUM_LINES} of {NUM_FILES * NUM_LINES}" in output
