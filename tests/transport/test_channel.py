import contextlib
import errno
import os
import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.transport import channel as channel_module
from fkat_data.transport.channel import Channel, ChannelClosed, TornFrameError


@pytest.fixture
def connected(nothing_left_behind):
    """Returns a socket of a class, a channel over it, and the channel at its other end."""
    with contextlib.ExitStack() as stack:

        def connected(kind=socket.socket):
            ours, theirs = socket.socketpair()
            sock = kind(fileno=ours.detach())
            return sock, *(stack.enter_context(contextlib.closing(Channel(end))) for end in (sock, theirs))

        yield connected


@pytest.fixture
def ends(connected):
    return connected()[1:]


def receive(channel):
    frame = channel.receive()
    while frame is None:
        channel.wait()
        frame = channel.receive()
    return frame


frames = st.lists(
    st.tuples(st.integers(0, 255), st.one_of(st.binary(max_size=40), st.integers(0, 600_000).map(bytes))), max_size=8
)


@given(sent=frames, cuts=st.lists(st.integers(1, 70_000), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_frames_of_any_size_arrive_whole_in_any_fragmentation(sent, cuts):
    raw, theirs = socket.socketpair()
    channel = Channel(theirs)
    stream = b"".join(struct.pack("<IB", len(body), kind) + body for kind, body in sent)
    got = []
    place = piece = 0
    least = len(stream) // 2000  # single bytes of some MB would take minutes
    while place < len(stream) or len(got) < len(sent):
        if place < len(stream):
            place += raw.send(stream[place : place + max(least, cuts[piece % len(cuts)])])
            piece += 1
        frame = channel.receive()
        while frame is not None:
            got.append(tuple(frame))
            frame = channel.receive_buffered()
    raw.close()
    assert got == sent
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()


def test_descriptors_arrive_with_their_messages_in_order(ends):
    first, second = ends
    for text in (b"a", b"b", b"c"):
        reader, writer = os.pipe()
        os.write(writer, text)
        os.close(writer)
        first.send(1, text * 1000, reader)
        first.send(2, b"between")
        os.close(reader)
    for text in (b"a", b"b", b"c"):
        assert receive(second).body == text * 1000
        descriptor = second.take_descriptor()
        assert os.read(descriptor, 1) == text
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
        assert receive(second).body == b"between"


def test_sending_to_a_peer_that_is_gone_says_so_and_posting_does_not(ends):
    first, second = ends
    second.close()
    with pytest.raises(ChannelClosed):
        first.send(1, b"x" * 1_000_000)
    first.post(1, b"x")
    assert not first.has_unsent


def test_a_full_socket_does_not_block_a_post_and_nothing_is_lost_or_reordered(ends):
    first, second = ends
    for index in range(8_000):
        first.post(index % 7, index.to_bytes(4, "little") * 10)
    assert first.has_unsent
    for index in range(8_000):
        frame = second.receive()
        while frame is None:
            first.flush()
            frame = second.receive()
        assert frame == (index % 7, index.to_bytes(4, "little") * 10)
    assert not first.has_unsent


def test_what_found_no_room_goes_while_waiting_for_an_answer(ends):
    first, second = ends
    for _ in range(100):
        first.post(1, bytes(10_000))

    def answer():
        for _ in range(100):
            receive(second)
        second.send(2, b"done")

    thread = threading.Thread(target=answer)
    thread.start()
    assert receive(first).body == b"done"
    thread.join()


@given(sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=6), carries=st.booleans())
@settings(max_examples=30, deadline=None)
def test_what_is_sent_arrives_whole_and_it_is_known_when_that_has_to_wait(sizes, carries):
    got, waits = [], []

    @contextlib.contextmanager
    def while_full():
        waits.append(len(got))
        started.set()
        yield

    def listen():
        started.wait()
        for _ in sizes:
            frame = receive(second)
            if carries:
                os.close(second.take_descriptor())
            got.append((frame.kind, len(frame.body)))

    ours, theirs = socket.socketpair()
    first, second = Channel(ours, while_full), Channel(theirs)
    started = threading.Event()
    listener = threading.Thread(target=listen)
    listener.start()
    try:
        for kind, size in enumerate(sizes):
            first.send(kind, bytes(size), descriptor=0 if carries else None)
        assert bool(waits) or sum(sizes) < 300_000
        started.set()
        listener.join(20)
    finally:
        started.set()
        first.close()
        second.close()
    assert got == list(enumerate(sizes))


class ShortOfMemory(socket.socket):
    """Fails as a kernel does that has no memory for messages, so many times."""

    failures = 0
    number = errno.ENOBUFS

    def _fail(self):
        if self.failures:
            self.failures -= 1
            raise OSError(self.number, os.strerror(self.number))

    def send(self, *arguments):
        self._fail()
        return super().send(*arguments)

    def sendmsg(self, *arguments):
        self._fail()
        return super().sendmsg(*arguments)


@pytest.fixture
def short_of_memory(connected):
    return connected(ShortOfMemory)


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS])
def test_a_kernel_that_has_no_memory_for_a_moment_delays_a_message(number, short_of_memory):
    short, channel, peer = short_of_memory
    short.number, short.failures = number, 3
    channel.send(7, b"sent")
    short.failures = 2
    with open(os.devnull) as file:  # noqa: PTH123 - a descriptor
        channel.send(8, b"with a descriptor", descriptor=file.fileno())
    short.failures = 2
    channel.post(9, b"posted")
    assert channel.has_unsent
    channel.wait(0.01)
    assert [tuple(receive(peer)) for _ in range(3)] == [(7, b"sent"), (8, b"with a descriptor"), (9, b"posted")]
    os.close(peer.take_descriptor())


def test_a_wait_beside_a_kernel_that_has_no_memory_ends_in_time(short_of_memory):
    short, channel, peer = short_of_memory
    short.failures = 1_000_000
    channel.post(9, b"posted")
    assert not channel.wait(0.05)
    peer.send(1, b"heard")
    assert channel.wait(0.05)
    assert tuple(receive(channel)) == (1, b"heard")
    short.failures = 0
    channel.flush()
    assert tuple(receive(peer)) == (9, b"posted")


def test_a_kernel_that_has_no_memory_for_long_is_an_error(short_of_memory, monkeypatch):
    monkeypatch.setattr(channel_module, "_LONGEST_FULL_S", 0.02)
    short, channel, peer = short_of_memory
    short.failures = 1_000_000
    with pytest.raises(OSError, match="No buffer space available, for"):
        channel.send(7, b"sent")
    short.failures = 0
    channel.send(8, b"whole")
    assert tuple(receive(peer)) == (8, b"whole")


class HalfSending(socket.socket):
    """Takes some bytes of a message, and raises at each further call."""

    taken_bytes = None
    error = OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    def send(self, data, flags=0):
        return super().send(self._taken(data), flags)

    def sendmsg(self, buffers, ancillary, flags=0):
        return super().sendmsg([self._taken(buffers[0])], ancillary, flags)

    def _taken(self, data):
        if self.taken_bytes is None:
            return data
        if self.taken_bytes == 0:
            raise self.error
        taken, self.taken_bytes = data[: self.taken_bytes], 0
        return taken


@pytest.fixture
def half_sending(connected, monkeypatch):
    monkeypatch.setattr(channel_module, "_LONGEST_FULL_S", 0.02)
    return connected(HalfSending)


@pytest.mark.parametrize("has_descriptor", [False, True])
@pytest.mark.parametrize("taken_bytes", [1, 4, 5, 9])
def test_after_a_part_of_a_message_no_other_one_is_sent(half_sending, taken_bytes, has_descriptor):
    half, channel, peer = half_sending
    channel.send(6, b"whole")
    half.taken_bytes = taken_bytes
    with open(os.devnull) as file:  # noqa: PTH123 - a descriptor
        descriptor = file.fileno() if has_descriptor else None
        with pytest.raises(TornFrameError, match=f"^{taken_bytes} of a message's 10 bytes.*No buffer space available"):
            channel.send(7, b"halve", descriptor)
    half.taken_bytes = None
    for body in (b"", b"after it"):
        with pytest.raises(TornFrameError, match="sent in part"):
            channel.send(8, body)
    channel.close()
    assert tuple(receive(peer)) == (6, b"whole")
    with pytest.raises(ChannelClosed):
        receive(peer)


@pytest.mark.parametrize("error", [TimeoutError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_a_message_that_a_signal_handler_interrupts_is_the_last_one(half_sending, error):
    half, channel, _ = half_sending
    half.taken_bytes, half.error = 3, error
    with pytest.raises(type(error)):
        channel.send(7, b"halve")
    half.taken_bytes = None
    with pytest.raises(TornFrameError, match="interrupted"):
        channel.send(8, b"after it")


def test_a_peer_that_leaves_in_the_middle_of_a_message_has_left(half_sending):
    half, channel, _ = half_sending
    half.taken_bytes, half.error = 3, BrokenPipeError()
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            channel.send(7, b"halve")
        half.taken_bytes = 0
