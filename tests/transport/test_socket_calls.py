import errno
import os
import socket
import sys
import threading
import time

import pytest

from fkat_data.transport import channel
from fkat_data.transport.channel import Channel


@pytest.fixture
def without_flags(monkeypatch):
    """As on macOS: no flag of a call keeps it from waiting, or a descriptor from programs."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(socket, "MSG_DONTWAIT", 0)
    for name in ("CLOSE_ON_EXEC", "NO_SIGNAL"):
        monkeypatch.setattr(channel, name, 0)


@pytest.fixture
def ends(without_flags):
    trainer, worker = map(Channel, socket.socketpair())
    yield trainer, worker
    trainer.close()
    worker.close()


def received(end):
    while True:
        frame = end.receive()
        if frame is not None:
            return frame
        assert end.wait(10)


def test_a_trainer_that_posts_to_a_full_socket_goes_on(ends):
    trainer, worker = ends
    began_s = time.monotonic()
    for number in range(50):
        trainer.post(number, bytes(100_000))
    assert time.monotonic() - began_s < 5
    assert trainer.has_unsent
    for number in range(50):
        assert received(worker) == (number, bytes(100_000))
        trainer.flush()


def test_a_worker_waits_for_room_and_sends_its_descriptors(ends):
    trainer, worker = ends
    reading, writing = os.pipe()
    large = os.urandom(3_000_000)

    def send():
        worker.send(1, large, reading)
        worker.send(2, b"after")

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.05)
    assert received(trainer) == (1, large)
    assert received(trainer) == (2, b"after")
    thread.join()
    came = trainer.take_descriptor()
    assert not os.get_inheritable(came)
    os.write(writing, b"x")
    assert os.read(came, 1) == b"x"
    for descriptor in (reading, writing, came):
        os.close(descriptor)


class Full(socket.socket):
    """As where no descriptor is free for one that comes."""

    def recvmsg_into(self, *_):
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))


def test_a_process_with_too_many_open_files_is_named(without_flags):
    ours, theirs = socket.socketpair()
    trainer = Channel(Full(fileno=ours.detach()))
    with theirs, pytest.raises(channel.WorkerError, match="ulimit -n"):
        trainer.receive()
    trainer.close()
