"""The files that the tests of stores fetch, and the ways to them."""

import hashlib
import random

from fkat_data.streaming.formats import FileInfo

__all__ = ["CONTENTS", "WAYS", "fetch", "fill", "info_of", "write_into"]

#: Small, not compressible, and none a multiple of another.
CONTENTS = {f"shard.{number:05}.mds": random.Random(number).randbytes(150_000 + 7919 * number) for number in range(4)}


def info_of(name, content=None):
    content = CONTENTS[name] if content is None else content
    return FileInfo(name, len(content), {"sha256": hashlib.sha256(content).hexdigest()})


def fill(server):
    for name, content in CONTENTS.items():
        server.put(f"train/{name}", content)


def write_into(directory):
    for name, content in CONTENTS.items():
        (directory / name).write_bytes(content)


#: Ways to the same files: the client, and the server at its other end.
WAYS = ("web-directory", "web-nginx", "s3-moto", "s3-s3rver")


def fetch(store, path, name="shard.00000.mds", algorithm="sha256", info=None):
    """Return what a download wrote."""
    with path.open("w+b") as file:
        store.download(name, file, info or info_of(name), algorithm)
    return path.read_bytes()
