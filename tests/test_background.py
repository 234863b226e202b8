import asyncio
import gc
import threading
import weakref

import pytest

from fkat_data.runtime.background import BackgroundCall, in_loop, in_thread

WAIT_S = 60


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_is_raised_where_the_outcome_is_fetched(error):
    def fail():
        raise error

    call = BackgroundCall(fail)
    with pytest.raises(type(error)):
        call.result()


def test_what_is_dropped_is_released_before_and_after_it_is_there():
    class Thing:
        pass

    begun, may_end, made = threading.Event(), threading.Event(), weakref.WeakSet()

    def make():
        begun.set()
        assert may_end.wait(WAIT_S)
        thing = Thing()
        made.add(thing)
        return thing

    late = BackgroundCall(make)
    assert begun.wait(WAIT_S)
    late.drop()
    may_end.set()
    late.wait()
    assert not made
    early = BackgroundCall(make)
    early.wait()
    assert len(made) == 1
    early.drop()
    assert not made


def test_a_call_after_another_begins_when_that_one_is_over_and_not_at_all_if_it_is_dropped():
    order = []
    may_end = threading.Event()

    def first():
        assert may_end.wait(WAIT_S)
        order.append("first")

    before = BackgroundCall(first)
    dropped = BackgroundCall(lambda: order.append("dropped"), before)
    after = BackgroundCall(lambda: order.append("after"), before)
    dropped.drop()
    may_end.set()
    after.result()
    dropped.wait()
    assert order == ["first", "after"]


async def _soon(value):
    await asyncio.sleep(0)
    return value


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_results_and_errors_come_back(loop):
    assert in_thread(lambda: 3, WAIT_S) == 3
    assert in_loop(loop, _soon(3), WAIT_S) == 3
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 / 0, WAIT_S)
    with pytest.raises(SystemExit):
        in_thread(lambda: exit(3), WAIT_S)  # noqa: PLR1722 - what a library might do


def test_what_takes_too_long_is_given_up(loop):
    release, cancelled = threading.Event(), threading.Event()

    async def hang():
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        in_thread(lambda: release.wait(600), 0.05)
    with pytest.raises(TimeoutError):
        in_loop(loop, hang(), 0.05)
    assert cancelled.wait(WAIT_S)
    release.set()


def test_an_error_that_was_raised_keeps_nothing_alive():
    class Thing:
        pass

    def fail():
        thing = Thing()
        things.append(weakref.ref(thing))
        raise ValueError(thing)

    things = []
    gc.disable()
    try:
        with pytest.raises(ValueError, match="Thing"):
            in_thread(fail, WAIT_S)
        assert things[0]() is None
    finally:
        gc.enable()


def test_a_thread_that_hangs_does_not_keep_the_process(run_script):
    run_script(
        "import threading\n"
        "from fkat_data.runtime.background import in_thread\n"
        "try:\n"
        "    in_thread(threading.Event().wait, 0.05)\n"
        "except TimeoutError:\n"
        "    print('given up')\n"
    )
