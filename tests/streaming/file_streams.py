"""What the tests of streams of files without an index share: a bucket, killed readers, and equality."""

import os
import signal
import time
from pathlib import Path

import numpy as np
from streaming_examples import same

from fkat_data.streaming import StreamingDataLoader, StreamingDataset

#: A multiple of the global batches: what fills up the last one depends on the world.
COUNT = 160
OPTIONS = {"batch_size": 4, "download_timeout": 10}


def equal(first, second):
    """Whether two values are equal, arrays with their dtype and whether they are writable."""
    if isinstance(first, np.ndarray):
        return (
            first.dtype == second.dtype
            and first.flags.writeable == second.flags.writeable
            and same(*map(list, (first, second)))
        )
    return same(first, second)


def all_same(found, expected):
    return all(same(mine, other) for mine, other in zip(found, expected, strict=True))


class Bucket:
    """A bucket of moto, which counts the requests for each key."""

    def __init__(self, server, prefix):
        self.server, self.prefix = server, prefix

    def fill(self, folder):
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                self.server.put(f"{self.prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def stream(self, local, pattern="", **options):
        return StreamingDataset(
            remote=f"s3://bucket/{self.prefix}{pattern}",
            local=str(local),
            storage_options=self.server.options(),
            **OPTIONS | options,
        )


def fill_and_be_killed(local, **options):
    """Fill a cache by processes that are killed at any moment, and remove a part of what they left."""
    for wait_s in np.random.default_rng(0).uniform(0, 0.15, 12).tolist():
        pid = os.fork()
        if not pid:
            for _ in StreamingDataLoader(StreamingDataset(shuffle=True, local=str(local), **options)):
                pass
            os._exit(0)
        time.sleep(wait_s)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for path in list(Path(local).rglob("*.parts/*"))[::2]:
            path.unlink()
