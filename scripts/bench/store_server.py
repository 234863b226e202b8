"""A throttled store on loopback: S3's unsigned GET and HEAD, of whole objects and ranges.

    python scripts/bench/store_server.py DIRECTORY BYTES_PER_S LATENCY_S

It prints its port. All connections together get BYTES_PER_S, and each response starts after LATENCY_S. The first part of
the path is the bucket, and can be anything.
"""

import asyncio
import hashlib
import sys
import time
from pathlib import Path

from aiohttp import web

_PIECE_BYTES = 64 << 10


async def main(directory: Path, bytes_per_s: float, latency_s: float) -> None:
    free_at_s = 0.0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal free_at_s
        await asyncio.sleep(latency_s)
        path = directory / request.match_info["name"]
        if not path.is_file():
            raise web.HTTPNotFound
        content = memoryview(path.read_bytes())
        first, end, _ = request.http_range.indices(len(content))
        response = web.StreamResponse(status=206 if "Range" in request.headers else 200)
        if response.status == 206:
            response.headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
        response.content_length = end - first
        response.etag = hashlib.md5(str(path.stat()).encode(), usedforsecurity=False).hexdigest()
        response.last_modified = path.stat().st_mtime
        await response.prepare(request)
        if request.method != "HEAD":
            for start in range(first, end, _PIECE_BYTES):
                piece = content[start : min(end, start + _PIECE_BYTES)]
                # Each piece waits for its turn on the link that all share.
                free_at_s = max(free_at_s, time.monotonic()) + len(piece) / bytes_per_s
                await asyncio.sleep(free_at_s - time.monotonic())
                await response.write(piece)
        return response

    application = web.Application()
    application.router.add_get("/{bucket}/{name:.+}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
