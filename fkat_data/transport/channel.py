"""The pipe between a trainer and a worker: framed messages and descriptors, both ways, over one socket.

End of file means that the peer is gone. The trainer's sends never wait: what the socket does not take at once goes
with the next call, so that two full directions cannot block each other. A worker's sends do wait.

Once a worker has opened a ring (see ``fkat_data.transport.ring``), its messages travel there. What finds no room in it,
or carries a descriptor, goes through the socket, and so does everything after it until the trainer has read the ring to
its end: a marker in the ring, and one in the socket, say where the order goes on.
"""

import array
import contextlib
import errno
import math
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeAlias

from fkat_data.errors import WorkerError
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.transport.ring import Frame, LimitBoard, RingReader, RingWriter, has_rings, new_ring

CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""For ``recvmsg``: no program inherits the descriptors that come along."""
NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
"""For ``send``: a peer that is gone is an error, and no signal."""
_NO_SIGPIPE = 0x1022  # SO_NOSIGPIPE, which Python does not name
_SOCKET_BYTES = 1 << 18  # macOS gives a socket 8 KiB


def prepare(sock: socket.socket) -> None:
    """Make each call on a stream socket one that does not wait, where a flag of the call is not enough."""
    if sys.platform == "linux":
        return
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
    if not NO_SIGNAL:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _NO_SIGPIPE, 1)


def wait_for_room(sock: socket.socket) -> None:
    """Wait until a prepared socket takes more, or its peer is gone; return at once where ``send`` itself waits."""
    if not sock.getblocking():
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        poll.poll()


def keep_from_programs(descriptors: Iterable[int]) -> None:
    """Let no program inherit descriptors that have just been received."""
    if not CLOSE_ON_EXEC:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)


_HEADER = struct.Struct("<IB")
#: Instead of a length, of a frame for the channel itself: a ring, whose descriptors it carries; the order goes on in it.
_OWN = 0xFFFFFFFF
_RING, _TO_RING = 1, 2
#: The kind of the ring's only frame that is not a message: the order goes on in the socket.
_TO_SOCKET = 0xFFFFFFFF
_BUFFER_BYTES = 1 << 18
_ANCILLARY_BYTES = socket.CMSG_SPACE(16 * struct.calcsize("i"))
#: A kernel that is short of memory, or of descriptors in flight, returns these: there may be room later.
_FULL = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})
_LONGEST_FULL_S = 30.0
_PAUSE_S = 0.005
#: When a trainer that waits for the bell looks at the ring once more.
_RECHECK_S = 0.01

_Rights: TypeAlias = "list[tuple[int, int, array.array[int]]]"


class ChannelClosed(Exception):  # noqa: N818 - no error: the other side may leave
    """The peer is gone, and everything that it sent was received."""


class TornFrameError(Exception):
    """The peer has received a part of a message and cannot get the rest: no other message can be sent."""


class Channel:
    """One end of the pipe.

    It belongs to one thread; ``hang_up`` may be called from any.

    Args:
        sock: A connected stream socket; the channel owns it.
        while_full: Makes the context in which ``send`` waits for room.
    """

    def __init__(
        self, sock: socket.socket, while_full: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    ) -> None:
        prepare(sock)
        self._socket = sock
        self._while_full = while_full
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start: int = 0
        self._end: int = 0
        self._ended = False
        self._descriptors: deque[int] = deque()
        self._outbox: deque[bytes] = deque()
        self._unsent = b""
        self.is_waiting: bool = False
        """Whether ``wait`` waits, or was interrupted while it did: nothing had changed then."""
        self._is_mid_frame = False
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._outgoing: RingWriter | None = None
        self._incoming: RingReader | None = None
        self.board: LimitBoard | None = None
        """Limits of microbatches in memory that both sides share; None without a ring."""
        # Where the next message is written to, or read from.
        self._is_in_ring = False
        # Beside a ring that is read, the socket carries its end alone, which a wait sees: it is not read for each message.
        self._is_socket_read = True

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether something posted still waits for room in the socket."""
        return bool(self._unsent or self._outbox)

    def send(self, kind: int, body: bytes, descriptor: int | None = None) -> None:
        """Send a message, waiting for room.

        Raises:
            ChannelClosed: The peer is gone.
            OSError: The kernel has no memory for it, and had none for 30 s. Nothing of it was sent.
            TornFrameError: A part of it, or of an earlier message, was sent and the rest was not.
        """
        ring = self._outgoing
        if ring is not None:
            if not self._is_in_ring and descriptor is None and ring.is_drained:
                self._send_frame(_HEADER.pack(_OWN, _TO_RING), [])
                self._is_in_ring = True
            if self._is_in_ring:
                if descriptor is None and ring.write(kind, body):
                    return
                # What did not go into the ring has to go through the socket.
                ring.write(_TO_SOCKET, b"", is_marker=True)
                self._is_in_ring = False
        frame = _HEADER.pack(len(body), kind) + body
        self._send_frame(frame, [] if descriptor is None else [descriptor])

    def open_ring(self) -> None:
        """Send messages through memory from now on, where the machine can: for the worker's side. Any number of calls.

        Raises:
            ChannelClosed: The peer is gone.
        """
        if self._outgoing is not None or not has_rings():
            return
        try:
            memory, bell = new_ring()
        except genuine(OSError):
            return
        try:
            outgoing = RingWriter(memory, bell)
            try:
                self._send_frame(_HEADER.pack(_OWN, _RING), [memory, bell])
            except BaseException:
                outgoing.close()
                raise
        finally:
            os.close(memory)
        self._outgoing, self.board = outgoing, outgoing.board
        self._is_in_ring = True

    def post(self, kind: int, body: bytes) -> None:
        """Send a message without waiting; what finds no room goes with the next call.

        A peer that is gone is no error here: the next ``receive`` raises it.
        """
        self.defer(kind, body)
        self.flush()

    def defer(self, kind: int, body: bytes) -> None:
        """Send a message with the next ``post``, ``flush`` or ``wait``."""
        self._outbox.append(_HEADER.pack(len(body), kind) + body)

    def flush(self) -> None:
        """Send what was posted, if the socket has room."""
        while self._outbox or self._unsent:
            if not self._send_some():
                return

    def receive(self) -> Frame | None:
        """Return the next message that has arrived, or None.

        Raises:
            ChannelClosed: The peer is gone and nothing is left.
            WorkerError: A descriptor was lost, as this process has too many open files.
        """
        frame = self.receive_buffered()
        if frame is None and self._is_socket_read and not self._ended:
            self._fill()
            frame = self.receive_buffered()
        if frame is None and self._ended:
            raise ChannelClosed
        return frame

    def receive_buffered(self) -> Frame | None:
        """Return the next message that came along with the last one, or None."""
        while True:
            if not self._is_in_ring or self._incoming is None:
                frame = self._parse()
                if frame is not None or not self._is_in_ring or self._incoming is None:
                    return frame
            frame = self._incoming.read()
            if frame is None or frame.kind != _TO_SOCKET:
                return frame
            self._is_in_ring = False
            self._is_socket_read = True

    def take_descriptor(self) -> int:
        """Return the descriptor that came with the last message that carries one."""
        return self._descriptors.popleft()

    def watch(self, descriptor: int) -> None:
        """Let ``wait`` end when this descriptor is readable, too."""
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until something arrives, or a watched descriptor is readable; return whether something has arrived.

        The peer's end counts as something.

        Args:
            timeout_s: How long at most; None: without a limit.
        """
        if self._incoming is None:
            return self._has_arrived(self._polled(timeout_s))
        return self._wait_beside_ring(self._incoming, timeout_s)

    def _wait_beside_ring(self, ring: RingReader, timeout_s: float | None) -> bool:
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        recheck_s = time.monotonic() + _RECHECK_S
        if self._is_in_ring and (timeout_s is None or timeout_s > _RECHECK_S) and self._nap(ring):
            return True
        try:
            if self._is_in_ring and not ring.begin_wait():
                self.flush()
                return True
            while True:
                now_s = time.monotonic()
                until_s = min(deadline_s, recheck_s if recheck_s > now_s else math.inf)
                events = self._polled(None if until_s == math.inf else max(0.0, until_s - now_s))
                has_rung = any(descriptor == ring.bell for descriptor, _ in events)
                if has_rung:  # perhaps for a wait that is over
                    os.eventfd_read(ring.bell)
                if self._has_arrived(events) or (self._is_in_ring and not ring.is_empty):
                    return True
                if len(events) > has_rung or time.monotonic() >= deadline_s:
                    return False
        finally:
            ring.end_wait()

    def _nap(self, ring: RingReader) -> bool:
        """Sleep for a moment if messages come fast; return whether any has come."""
        nap_s = ring.nap_s()
        if not nap_s:
            return False
        self.flush()
        self.is_waiting = True
        time.sleep(nap_s)
        self.is_waiting = False
        return ring.end_nap()

    def _has_arrived(self, events: list[tuple[int, int]]) -> bool:
        number = self._socket.fileno()
        if any(descriptor == number for descriptor, _ in events):
            self._is_socket_read = True
            return True
        return False

    def _polled(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Return the descriptors that are readable, after waiting for one; send what was posted meanwhile."""
        self.flush()
        timeout_ms = None if timeout_s is None else 1000 * timeout_s
        pause_s = 0.0
        while self.has_unsent:
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
            events = self._poll.poll(timeout_ms)
            self._poll.modify(self._socket, select.POLLIN)
            left_bytes = len(self._unsent)
            self.flush()
            if not events or any(event != select.POLLOUT for _, event in events):
                break
            if len(self._unsent) >= left_bytes > 0:
                # There is room, but the kernel has no memory: do not spin, nor wait for longer than the caller asked.
                time.sleep(_PAUSE_S)
                pause_s += _PAUSE_S
                if timeout_s is not None and pause_s > timeout_s:
                    return []
        else:
            self.is_waiting = True
            events = self._poll.poll(timeout_ms)
            self.is_waiting = False
        return events

    def end_wait(self) -> None:
        """Record that the interrupted wait is over."""
        self.is_waiting = False

    def hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """Let both sides receive end of file, a thread in ``wait`` included; the descriptors stay open.

        Args:
            how: ``SHUT_WR``: only the peer receives it, and what it still sends can be received.
        """
        self._outbox.clear()
        self._unsent = b""
        with suppress(OSError):
            # Reaches the peer even if a forked process still holds the descriptor.
            self._socket.shutdown(how)

    def close(self) -> None:
        """Close this end; the peer receives end of file."""
        self.hang_up()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors without notifying the peer: for a forked child that inherited them."""
        self._socket.close()
        for ring in (self._outgoing, self._incoming):
            if ring is not None:
                ring.close()
        self._start = self._end = 0
        self._ended = True
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _send_frame(self, frame: bytes, descriptors: list[int]) -> None:
        rights: _Rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        if self._is_mid_frame:
            raise TornFrameError("an earlier message to the trainer was interrupted, and perhaps sent in part")
        try:
            # Until all or nothing of the frame is sent: whatever ends this between leaves the channel unusable.
            self._is_mid_frame = True
            sent = self._sent(frame, rights, socket.MSG_DONTWAIT)
            if sent < len(frame):
                with self._while_full():
                    self._send_rest(frame, rights, sent)
            self._is_mid_frame = False
        except genuine(BrokenPipeError, ConnectionResetError):
            self._is_mid_frame = False
            raise ChannelClosed from None

    def _sent(self, frame: bytes, rights: _Rights, flags: int = 0) -> int:
        """Return how many bytes the socket has taken."""
        try:
            return self._socket.sendmsg([frame], rights, flags) if rights else self._socket.send(frame, flags)
        except genuine(OSError) as error:
            if error.errno in _FULL:
                return 0
            raise

    def _send_rest(self, frame: bytes, rights: _Rights, sent: int) -> None:
        deadline_s = time.monotonic() + _LONGEST_FULL_S
        while sent < len(frame):
            wait_for_room(self._socket)
            # The descriptor goes with the first bytes.
            more = self._sent(frame[sent:], rights if sent == 0 else [])
            sent += more
            if more:
                deadline_s = time.monotonic() + _LONGEST_FULL_S
            elif time.monotonic() > deadline_s:
                error = OSError(errno.ENOBUFS, f"{os.strerror(errno.ENOBUFS)}, for {_LONGEST_FULL_S:.0f} s")
                if sent:
                    raise TornFrameError(f"{sent} of a message's {len(frame)} bytes were sent to the trainer: {error}")
                self._is_mid_frame = False
                raise error
            else:
                time.sleep(_PAUSE_S)

    def _send_some(self) -> bool:
        """Send once; return whether the socket took all that was offered."""
        offered = self._unsent
        try:
            while self._outbox:
                offered += self._outbox.popleft()
        except genuine(IndexError):  # another thread may close the channel meanwhile
            pass
        try:
            sent = self._socket.send(offered, socket.MSG_DONTWAIT | NO_SIGNAL)
        except genuine(OSError) as error:
            # Nothing receives it from here on: the peer is gone, or the socket was closed.
            sent = 0 if error.errno in _FULL else len(offered)
        self._unsent = offered[sent:]
        return not self._unsent

    def _parse(self) -> Frame | None:
        available = self._end - self._start
        if available < _HEADER.size:
            return None
        length, kind = _HEADER.unpack_from(self._buffer, self._start)
        if length == _OWN:
            self._start += _HEADER.size
            self._go_to_ring(kind)
            return None
        total = _HEADER.size + length
        if available < total:
            self._make_room(total)
            return None
        body_start = self._start + _HEADER.size
        self._start += total
        return Frame(kind, bytes(self._view[body_start : body_start + length]))

    def _go_to_ring(self, kind: int) -> None:
        if kind == _RING:
            memory, bell = self._descriptors.popleft(), self._descriptors.popleft()
            try:
                self._incoming = RingReader(memory, bell)
            finally:
                os.close(memory)
            self.board = self._incoming.board
            self._poll.register(bell, select.POLLIN)
        self._is_in_ring = True
        self._is_socket_read = False

    def _fill(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            self._make_room(self._end - self._start + _HEADER.size)
        try:
            received, ancillary, flags, _ = self._socket.recvmsg_into(
                [self._view[self._end :]], _ANCILLARY_BYTES, socket.MSG_DONTWAIT | CLOSE_ON_EXEC
            )
        except genuine(BlockingIOError):
            return
        except genuine(ConnectionResetError):
            received, ancillary, flags = 0, [], 0
        except genuine(OSError) as error:
            if error.errno != errno.EMSGSIZE:
                raise
            received, ancillary, flags = 0, [], socket.MSG_CTRUNC  # macOS says it so
        for _, _, data in ancillary:
            came = memoryview(data[: len(data) // 4 * 4]).cast("i").tolist()
            keep_from_programs(came)
            self._descriptors.extend(came)
        if flags & socket.MSG_CTRUNC:
            raise WorkerError(
                "a segment's descriptor did not arrive: this process has too many open files (see `ulimit -n`)"
            )
        if received == 0:
            self._ended = True
        self._end += received

    def _make_room(self, size_bytes: int) -> None:
        """Move what is unread to the front of a buffer that holds at least ``size_bytes``."""
        unread = bytes(self._view[self._start : self._end])
        if size_bytes > len(self._buffer):
            self._buffer = bytearray(size_bytes)
            self._view = memoryview(self._buffer)
        self._view[: len(unread)] = unread
        self._start, self._end = 0, len(unread)
