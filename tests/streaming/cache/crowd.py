"""Many processes in two jobs on one cache, killed at random: a program that ends with an error if anything is wrong."""

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from cache_examples import content, get, is_exact, is_right, is_shard, leftovers_in, map_from, shards_in

from fkat_data.errors import ShardNotFoundError
from fkat_data.streaming.cache import Cache, CacheBudget

NUM_PROCESSES = 8
SIZES = {f"s{number:02}.mds": 2000 + 731 * number % 5000 for number in range(60)}
LARGEST_BYTES = max(SIZES.values())
LIMIT_BYTES = max(sum(SIZES.values()) // 10, 3 * LARGEST_BYTES)


class Log:
    """Lines that survive whoever wrote them."""

    def __init__(self, path):
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words):
        os.write(self.descriptor, (" ".join(words) + "\n").encode())


def noting_removals(log):
    """Have every removal written down before it happens."""
    unlink = os.unlink

    def noted(name, *, dir_fd=None):
        if dir_fd is not None:
            log.write("removed", name)
        return unlink(name, dir_fd=dir_fd)

    os.unlink = noted


def bytes_in(directory):
    """What the files of a cache take, and those that are being made will take."""
    total_bytes = 0
    for path in [*directory.glob("*.mds"), *(directory / ".fkat_data" / "making").glob("*")]:
        with contextlib.suppress(FileNotFoundError):
            size_bytes = path.stat().st_size
            total_bytes += size_bytes if path.suffix == ".mds" else max(size_bytes, int(path.suffix[1:]))
    return total_bytes


def read_for_ever(folder, seed):
    """Ask for files at random, as a rank does; write down what is wrong, and exit if anything is."""
    log = Log(folder / "log")
    noting_removals(log)
    rng = random.Random(seed)
    cache = Cache(folder / "cache", CacheBudget([folder / "cache"], LIMIT_BYTES, is_shard))
    while True:
        name = rng.choice(list(SIZES)[: rng.choice([6, 60])])
        run = f"{os.getpid()}.{time.monotonic_ns()}"
        made = []

        def fill(file, name=name, run=run, made=made):
            made.append(name)
            log.write("begun", name, run)
            data = content(name, SIZES[name])
            for start in range(0, len(data), 1000):
                file.write(data[start : start + 1000])
                file.flush()
                if rng.random() < 0.02:
                    time.sleep(0.02)

        path = cache.get(name, SIZES[name], fill, wait=rng.random() < 0.7)
        if made:
            log.write("done", name, run)
        if path is not None:
            with contextlib.suppress(ShardNotFoundError):  # gone again: a reader asks once more
                if bytes(map_from(cache, name, SIZES[name])) != content(name, SIZES[name]):
                    log.write("wrong", name, run)
        if rng.random() < 0.02:
            cache.remove(rng.choice(list(SIZES)))


def start(folder, seed):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        read_for_ever(folder, seed)
    except BaseException as error:  # whatever it is, it must not go back into the parent's program
        Log(folder / "log").write("error", repr(error).replace("\n", " "))
        raise
    finally:
        os._exit(code)


def strike(folder, num_rounds, seed):
    rng = random.Random(seed)
    directory = folder / "cache"
    pids = [start(folder, f"{seed} {place}") for place in range(NUM_PROCESSES)]
    most_bytes, num_kills = 0, 0
    for number in range(num_rounds):
        deadline_s = time.monotonic() + rng.uniform(0.1, 0.5)
        while time.monotonic() < deadline_s:
            # Not by the budget: counting would put right what the ledger says.
            most_bytes = max(most_bytes, bytes_in(directory))
            time.sleep(0.02)
        for place in rng.sample(range(NUM_PROCESSES), rng.randint(1, 3)):
            os.kill(pids[place], rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 0.05))
            os.kill(pids[place], signal.SIGKILL)
            os.waitpid(pids[place], 0)
            num_kills += 1
            pids[place] = start(folder, f"{seed} {place} {number}")
    time.sleep(0.3)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return most_bytes, num_kills + len(pids)


def main(folder, num_rounds, seed):
    most_bytes, num_kills = strike(folder, num_rounds, seed)
    directory = folder / "cache"
    lines = [line.split(" ", 2) for line in (folder / "log").read_text().splitlines()]
    begun = {(name, run) for word, name, run in (line for line in lines if line[0] == "begun")}
    done = {(name, run) for word, name, run in (line for line in lines if line[0] == "done")}
    removed = Counter(line[1] for line in lines if line[0] == "removed")
    unfinished = Counter(name for name, _ in begun - done)
    times = Counter(name for name, _ in begun)
    cache = Cache(directory, CacheBudget([directory], LIMIT_BYTES, is_shard))
    assert leftovers_in(directory) == []
    assert is_exact(directory)
    assert [name for name in shards_in(directory) if not is_right(directory / name, name, SIZES[name])] == []
    for name, size_bytes in SIZES.items():
        get(cache, name, size_bytes)
    assert CacheBudget([directory], None).usage_bytes <= LIMIT_BYTES
    assert most_bytes <= LIMIT_BYTES + 2 * NUM_PROCESSES * LARGEST_BYTES
    assert [line for line in lines if line[0] in ("wrong", "error")] == []
    assert [name for name in times if times[name] > 1 + removed[name] + unfinished[name]] == [], "made too often"
    assert num_kills > num_rounds
    assert len(begun) > 10 * num_rounds


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
