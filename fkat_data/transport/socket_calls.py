"""What Linux does by a flag of a call on a socket, and other systems by a setting of the socket or a call of its own.

macOS ignores ``MSG_DONTWAIT`` when it sends, has no ``MSG_CMSG_CLOEXEC``, and raises SIGPIPE unless the socket says no.
"""

import os
import select
import socket
import sys
from collections.abc import Iterable

from fkat_data.interruption import suppress

CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""For ``recvmsg``: no program inherits the descriptors that come along."""
NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
"""For ``send``: a peer that is gone is an error, and no signal."""
_NO_SIGPIPE = 0x1022  # SO_NOSIGPIPE, which Python does not name
_BUFFER_BYTES = 1 << 18  # macOS gives a socket 8 KiB


def prepare(sock: socket.socket) -> None:
    """Make each call on a stream socket one that does not wait, where a flag of the call is not enough."""
    if sys.platform == "linux":
        return
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
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
