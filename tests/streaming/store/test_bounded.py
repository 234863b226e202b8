import asyncio
import threading
import time

import pytest
from fsspec.asyn import get_loop

from fkat_data.streaming.store.bounded import in_loop, in_thread


async def _soon(value):
    await asyncio.sleep(0)
    return value


def test_results_and_errors_come_back():
    assert in_thread(lambda: 3, 5) == 3
    assert in_loop(get_loop(), _soon(3), 5) == 3
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 / 0, 5)
    with pytest.raises(SystemExit):
        in_thread(lambda: exit(3), 5)  # noqa: PLR1722 - what a library might do


def test_what_hangs_is_given_up():
    release, cancelled = threading.Event(), threading.Event()

    async def hang():
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    started_at = time.monotonic()
    with pytest.raises(TimeoutError):
        in_thread(lambda: release.wait(60), 0.05)
    with pytest.raises(TimeoutError):
        in_loop(get_loop(), hang(), 0.05)
    assert cancelled.wait(10)
    assert time.monotonic() - started_at < 10
    release.set()


def test_a_thread_that_hangs_does_not_keep_the_process(run_script):
    started_at = time.monotonic()
    run_script(
        "import threading\n"
        "from fkat_data.streaming.store.bounded import in_thread\n"
        "try:\n"
        "    in_thread(threading.Event().wait, 0.05)\n"
        "except TimeoutError:\n"
        "    print('given up')\n"
    )
    assert time.monotonic() - started_at < 60
