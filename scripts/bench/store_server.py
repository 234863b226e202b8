"""A throttled store on loopback: S3's unsigned GET and HEAD, of whole objects and ranges.

    python scripts/bench/store_server.py DIRECTORY BYTES_PER_S LATENCY_S

It prints its port. ``/sent`` says how many bytes of objects were sent since it was last asked. All connections together get BYTES_PER_S, and each response starts after LATENCY_S. The first part of
the path is the bucket, and can be anything.
"""

import asyncio
import contextlib
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

_PIECE_BYTES = 64 << 10


async def main(directory: Path, bytes_per_s: float, latency_s: float) -> None:
    free_at_s, num_sent = 0.0, 0

    async def sent(_: web.Request) -> web.Response:
        nonlocal num_sent
        answer, num_sent = web.Response(text=str(num_sent)), 0
        return answer

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal free_at_s, num_sent
        await asyncio.sleep(latency_s)
        path = directory / request.match_info["name"]
        if not path.is_file():
            raise web.HTTPNotFound
        size_bytes = path.stat().st_size
        first, end, _ = request.http_range.indices(size_bytes)
        response = web.StreamResponse(status=206 if "Range" in request.headers else 200)
        if response.status == 206:
            response.headers["Content-Range"] = f"bytes {first}-{end - 1}/{size_bytes}"
        response.content_length = end - first
        response.etag = hashlib.md5(str(path.stat()).encode(), usedforsecurity=False).hexdigest()
        response.last_modified = path.stat().st_mtime
        await response.prepare(request)
        if request.method != "HEAD":
            with path.open("rb") as file:
                file.seek(first)
                content = memoryview(file.read(end - first))
            num_sent += len(content)
            for start in range(0, len(content), _PIECE_BYTES):
                piece = content[start : start + _PIECE_BYTES]
                # Each piece waits for its turn on the link that all share.
                free_at_s = max(free_at_s, time.monotonic()) + len(piece) / bytes_per_s
                await asyncio.sleep(free_at_s - time.monotonic())
                await response.write(piece)
        return response

    application = web.Application()
    application.router.add_get("/sent", sent)
    application.router.add_get("/{bucket}/{name:.+}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def served(data: Path, bytes_per_s: float, latency_s: float) -> Iterator[int]:
    """Serve a directory from a process of its own; yield the port."""
    command = [sys.executable, __file__, str(data), str(bytes_per_s), str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(server.stdout.readline() if server.stdout else 0)
        finally:
            server.kill()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
