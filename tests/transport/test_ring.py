"""Messages that travel in a ring, beside a socket: whole, in order, and no wait outlasts the message it waits for."""

import os
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.transport import channel as channel_module
from fkat_data.transport.channel import Channel
from fkat_data.transport.ring import Naps, RingReader, RingWriter, has_rings, new_ring

pytestmark = pytest.mark.skipif(not has_rings(), reason="this machine has no rings")


@pytest.fixture
def ends(nothing_left_behind):
    """A worker's end with a ring, and its trainer's."""
    worker, trainer = (Channel(sock) for sock in socket.socketpair())
    worker.open_ring()
    yield worker, trainer
    worker.close()
    trainer.close()


@pytest.fixture
def raw(nothing_left_behind):
    """Another descriptor of the trainer's socket, and the two ends."""
    ours, theirs = socket.socketpair()
    worker, trainer = Channel(ours), Channel(theirs)
    worker.open_ring()
    with theirs.dup() as raw:
        yield raw, worker, trainer
    worker.close()
    trainer.close()


def receive(channel, timeout_s=20.0):
    deadline_s = time.monotonic() + timeout_s
    while (frame := channel.receive()) is None:
        assert time.monotonic() < deadline_s
        channel.wait(timeout_s)
    return frame


def body_of(number, size):
    return number.to_bytes(4, "little") + bytes(size)


# A send of so many bytes, with or without a descriptor, or the receiving of so many messages.
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([0, 1, 7, 8, 100, 3000, 40_000, 70_000]), st.booleans()),
        st.integers(1, 12),
    ),
    max_size=60,
)


@given(steps=steps)
@settings(max_examples=150, deadline=None)
def test_messages_arrive_whole_and_in_order_however_ring_and_socket_share_them(steps):
    worker, trainer = (Channel(sock) for sock in socket.socketpair())
    worker.open_ring()
    sent = got = unread_bytes = 0
    try:
        for step in steps:
            if isinstance(step, int):
                for _ in range(min(step, sent - got)):
                    frame = receive(trainer)
                    assert frame.kind == got % 256
                    assert frame.body[:4] == got.to_bytes(4, "little")
                    assert not any(frame.body[4:])
                    got += 1
                if got == sent:
                    unread_bytes = 0
                continue
            size, carries = step
            if unread_bytes + size > 150_000:  # a worker would wait for its trainer, which is this very thread
                continue
            unread_bytes += size
            worker.send(sent % 256, body_of(sent, size), 0 if carries else None)
            sent += 1
        while got < sent:
            assert receive(trainer).body[:4] == got.to_bytes(4, "little")
            got += 1
        assert trainer.receive() is None
    finally:
        worker.close()
        trainer.close()


def test_small_messages_leave_the_socket_alone(raw):
    raw, worker, trainer = raw
    worker.send(1, b"first")
    assert receive(trainer).body == b"first"
    worker.send(2, b"second")
    with pytest.raises(BlockingIOError):
        raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    assert receive(trainer).body == b"second"


def test_a_wait_without_a_message_ends_in_time(ends):
    worker, trainer = ends
    worker.send(1, b"")
    receive(trainer)
    began_s = time.monotonic()
    assert not trainer.wait(0.05)
    assert time.monotonic() - began_s >= 0.05


@pytest.mark.parametrize("pause_s", [0.0, 20e-6, 0.0005])
def test_no_wake_up_is_lost(ends, pause_s, monkeypatch):
    # Without the second look, a lost one would be a wait of 20 s.
    monkeypatch.setattr(channel_module, "_RECHECK_S", 1000.0)
    worker, trainer = ends
    count = 4000 if pause_s < 0.0001 else 500

    def send():
        for number in range(count):
            worker.send(1, number.to_bytes(4, "little"))
            if pause_s:
                time.sleep(pause_s)

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(count):
        while (frame := trainer.receive()) is None:
            assert trainer.wait(20)
        assert frame.body == number.to_bytes(4, "little")
    sender.join()


def test_without_memory_for_a_ring_everything_goes_through_the_socket(monkeypatch, nothing_left_behind):
    def none():
        raise OSError(12, "injected")

    monkeypatch.setattr(channel_module, "new_ring", none)
    worker, trainer = (Channel(sock) for sock in socket.socketpair())
    worker.open_ring()
    worker.send(1, b"sent")
    assert receive(trainer).body == b"sent"
    assert worker.board is trainer.board is None
    worker.close()
    trainer.close()


@pytest.fixture
def boards(nothing_left_behind):
    memory, bell = new_ring()
    writer, reader = RingWriter(memory, bell), RingReader(memory, os.dup(bell))
    os.close(memory)
    yield reader.board, writer.board
    writer.close()
    reader.close()


def test_a_limit_is_of_one_task(boards):
    trainer, worker = boards
    assert worker.limit(0) == 0
    assert not trainer.publish(7, 12)
    assert (worker.limit(7), worker.limit(6), worker.limit(8)) == (12, 0, 0)
    trainer.publish(9, 3)
    assert (worker.limit(7), worker.limit(9)) == (0, 3)


def test_a_sleeping_worker_is_woken_once_from_what_it_wants_on(boards):
    trainer, worker = boards
    worker.sleep(12)
    assert trainer.is_writer_asleep
    assert [trainer.publish(0, limit) for limit in (10, 11, 12, 13)] == [False, False, True, False]
    worker.rise()
    assert not trainer.is_writer_asleep
    assert not trainer.publish(0, 14)
    worker.sleep(12)
    assert trainer.publish(0, 15)


def test_a_trainer_that_waits_wakes_a_sleeping_worker_whatever_it_wants(boards):
    trainer, worker = boards
    assert not trainer.is_asleep()
    worker.sleep(12)
    assert not trainer.publish(0, 9)
    assert trainer.is_asleep()
    assert not trainer.is_asleep()


def test_naps_are_taken_where_messages_come_fast_and_are_short():
    naps, now_s, num_read = Naps(), 0.0, 0
    for interval_s, is_napping in ((20e-6, True), (100e-6, True), (200e-6, False), (0.01, False)):
        naps.duration_s(now_s, num_read)
        for _ in range(10):
            now_s, num_read = now_s + 4 * interval_s, num_read + 4
            assert (0 < naps.duration_s(now_s, num_read) <= 100e-6) == is_napping
