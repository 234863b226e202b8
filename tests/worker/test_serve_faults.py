"""A server whose channel fails, passed to it by the test: each fault is a failure in its place, or the server's end."""

import errno
import itertools
import os
import socket
import struct
import threading

import numpy as np
import pytest

from fkat_data.observe.stages import StageClock, new_page
from fkat_data.plan.task import Task
from fkat_data.seeding import preserved_generators
from fkat_data.transport import channel as channel_module
from fkat_data.transport.channel import Channel, ChannelClosed, TornFrameError
from fkat_data.transport.codec import decode
from fkat_data.transport.segment import SegmentLeases
from fkat_data.worker.failure import unpack_failure
from fkat_data.worker.messages import END, FAILURE, ITEM, NO_LIMIT, NO_SEGMENT, SEGMENT, Kind, pack_task
from fkat_data.worker.produce import Producer
from fkat_data.worker.serve import Server

SHARDS = ["small-3", "large-2", "endless-2"]


@pytest.fixture(autouse=True)
def _generators_as_they_were():
    with preserved_generators():
        yield


def microbatches_of(shard):
    kind, count = shard.split("-")
    size = 20_000 if kind == "large" else 3
    made = [np.arange(size, dtype=np.float64) + index for index in range(int(count))]
    return iter(made) if kind == "endless" else made


class FaultyChannel(Channel):
    """A worker's end of the pipe whose n-th send, or receive, fails."""

    def __init__(self, sock, failing, occurrence, error):
        super().__init__(sock)
        self._failing, self._left, self._error = failing, occurrence, error

    def _count(self, method):
        if method == self._failing:
            self._left -= 1
            if self._left == 0:
                raise self._error

    def send(self, kind, body, descriptor=None):
        self._count("send")
        super().send(kind, body, descriptor)

    def receive(self):
        self._count("receive")
        return super().receive()

    @property
    def has_failed(self):
        return self._left <= 0


class Trainer:
    """The other end: what it receives of each task, as values."""

    def __init__(self, sock):
        self.channel = Channel(sock)
        self.leases = SegmentLeases(lambda index, size_bytes: None)
        self.received = {ticket: [] for ticket in range(len(SHARDS))}
        self.failures = {}
        self.ended = set()

    def listen(self):
        for ticket, shard in enumerate(SHARDS):
            self.channel.post(Kind.ASSIGN, pack_task(Task(ticket, 0, ticket, shard, 0), NO_LIMIT))
        while not {*self.ended, *self.failures} >= set(self.received):
            try:
                frame = self.channel.receive()
            except ChannelClosed:
                return
            if frame is None:
                assert self.channel.wait(20)
            else:
                self._take(frame.kind, frame.body)

    def _take(self, kind, body):
        match kind:
            case Kind.ITEM:
                self._take_item(body)
            case Kind.SEGMENT:
                index, size_bytes = SEGMENT.unpack(body)
                self.leases.add(index, self.channel.take_descriptor(), size_bytes)
            case Kind.END:
                ticket, count = END.unpack(body)
                assert count == len(self.received[ticket])
                self.ended.add(ticket)
            case Kind.FAILURE:
                self.failures[FAILURE.unpack_from(body)[0]] = unpack_failure(body[FAILURE.size :])
            case _:
                assert kind == Kind.BEGIN

    def _take_item(self, body):
        ticket, index, is_last, segment, in_segment, num_parts, envelope_bytes, _, _ = ITEM.unpack_from(body)
        assert ticket not in self.failures
        assert index == len(self.received[ticket])
        assert not in_segment
        sizes = struct.unpack_from(f"<{num_parts}q", body, ITEM.size)
        rest = body[ITEM.size + 8 * num_parts :]
        base = bytearray(rest[envelope_bytes:]) if segment == NO_SEGMENT else self.leases.lease(segment)
        self.received[ticket].append(decode(rest[:envelope_bytes], sizes, base, 0).tolist())
        if is_last == 1:
            self.ended.add(ticket)


class TearingSocket(socket.socket):
    """Takes only the first bytes of its n-th message, and nothing more for as long as the next ones fail."""

    def __init__(self, descriptor, occurrence, num_failures):
        super().__init__(fileno=descriptor)
        self.left, self.num_failures = occurrence, num_failures

    def send(self, data, flags=0):
        return super().send(self._taken(data), flags)

    def sendmsg(self, buffers, ancillary, flags=0):
        return super().sendmsg([self._taken(buffers[0])], ancillary, flags)

    def _taken(self, data):
        self.left -= 1
        if -self.num_failures <= self.left < 0:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        return data[:3] if self.left == 0 else data


def serve(failing, occurrence, error):
    """Let a server with a faulty channel do all tasks; return the trainer's end, the channel and what it raised."""
    ours, theirs = socket.socketpair()
    return serve_over(ours, FaultyChannel(theirs, failing, occurrence, error))


def serve_over(ours, channel):
    """Let a server do all tasks; return the trainer's end, the server's channel and what it raised."""
    trainer, raised = Trainer(ours), []
    clock = StageClock(new_page())

    def run():
        try:
            Server(channel, Producer(microbatches_of, 7, 0, clock.mark), 1 << 20, lambda: None, clock=clock).run()
        except Exception as end:  # noqa: BLE001 - what ends a worker
            raised.append(end)
        finally:
            channel.close()

    thread = threading.Thread(target=run)
    thread.start()
    trainer.listen()
    trainer.channel.hang_up()
    thread.join(20)
    trainer.channel.close()
    assert not thread.is_alive()
    return trainer, channel, raised


@pytest.mark.parametrize("failing", ["send", "receive"])
@pytest.mark.parametrize("error", [OSError(105, "injected"), RuntimeError("injected")], ids=["ENOBUFS", "an error"])
def test_a_channel_that_fails_once_leaves_no_gap_and_hides_nothing(failing, error):
    due = {ticket: [made.tolist() for made in microbatches_of(shard)] for ticket, shard in enumerate(SHARDS)}
    for occurrence in itertools.count(1):
        trainer, channel, raised = serve(failing, occurrence, error)
        for ticket, microbatches in trainer.received.items():
            assert microbatches == due[ticket][: len(microbatches)]
            is_whole = len(microbatches) == len(due[ticket])
            assert is_whole or ticket in trainer.failures or raised, (occurrence, ticket)
        assert all("injected" in str(failure) for failure in trainer.failures.values())
        assert len(trainer.failures) <= 1
        if not channel.has_failed:
            break
        assert trainer.failures or raised or trainer.received == due
    assert occurrence > 3
    assert trainer.received == due


def test_a_server_that_sends_a_part_of_a_message_ends_and_says_no_more(monkeypatch):
    monkeypatch.setattr(channel_module, "_LONGEST_FULL_S", 0.01)
    due = {ticket: [made.tolist() for made in microbatches_of(shard)] for ticket, shard in enumerate(SHARDS)}
    for occurrence in itertools.count(1):
        ours, theirs = socket.socketpair()
        sock = TearingSocket(theirs.detach(), occurrence, 1_000_000)
        trainer, _, raised = serve_over(ours, Channel(sock))
        assert not trainer.failures
        for ticket, microbatches in trainer.received.items():
            assert microbatches == due[ticket][: len(microbatches)]
        if sock.left > 0:
            break
        (error,) = raised
        assert isinstance(error, TornFrameError)
        assert str(error).startswith("3 of a message's ")
        assert "No buffer space available" in str(error)
    assert occurrence > 2
    assert (trainer.received, raised) == (due, [])


def test_a_server_whose_message_finds_room_again_goes_on(monkeypatch):
    monkeypatch.setattr(channel_module, "_LONGEST_FULL_S", 5.0)
    due = {ticket: [made.tolist() for made in microbatches_of(shard)] for ticket, shard in enumerate(SHARDS)}
    for occurrence in (1, 2, 3):
        ours, theirs = socket.socketpair()
        trainer, _, raised = serve_over(ours, Channel(TearingSocket(theirs.detach(), occurrence, 3)))
        assert (trainer.received, trainer.failures, raised) == (due, {}, [])
