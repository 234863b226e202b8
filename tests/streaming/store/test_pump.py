import threading
import time

import pytest

from fkat_data.streaming.store.pump import Pump


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "fkat-store"]


def everything(pump):
    pieces = []
    while piece := pump.read(5):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("sizes", [[], [1], [3, 5, 7], [700_000] * 5])
def test_all_bytes_come_in_their_order(sizes):
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    pump = Pump(iter(pieces))
    assert everything(pump) == b"".join(pieces)
    assert pump.read(5) == b""


def test_an_error_comes_after_what_came_before_it():
    def source():
        yield b"one"
        raise ConnectionResetError("cut")

    pump = Pump(source())
    assert pump.read(5) == b"one"
    with pytest.raises(ConnectionResetError, match="cut"):
        pump.read(5)


def test_silence_ends_a_wait_and_closing_ends_the_thread():
    go_on = threading.Event()

    def source():
        go_on.wait(30)
        yield b"late"

    pump = Pump(source())
    with pytest.raises(TimeoutError):
        pump.read(0.05)
    pump.close()
    go_on.set()
    deadline = time.monotonic() + 10
    while threads():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_reads_a_little_ahead_and_no_more():
    taken = []

    def source():
        for number in range(100):
            taken.append(number)
            yield bytes(200_000)

    pump = Pump(source())
    pump.read(5)
    time.sleep(0.2)
    assert len(taken) < 20
    pump.close()
