"""Ranks that get the same, and share a host: the others connect to the first, whose workers make for all."""

import contextlib
import os
import secrets
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from fkat_data.runtime.distributed import gather, rank_and_world_size
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import text_of
from fkat_data.runtime.mesh import MeshRanks
from fkat_data.worker.process.shared_worker import ProducerLink
from fkat_data.worker.process.shared_workers import SharedWorkers

_CONNECT_S = 20.0
_RANK = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")


def meet(mesh: MeshRanks, *, is_wanted: bool) -> SharedWorkers | ProducerLink | None:
    """Return this rank's end of the connections of its group; None: each has workers of its own. A collective.

    Args:
        mesh: The ranks.
        is_wanted: Whether this rank's loader has worker processes that may be shared.
    """
    if not mesh.has_replicas:
        return None
    rank, first = rank_and_world_size()[0], mesh.replicas[0]
    can = is_wanted and sys.platform == "linux" and hasattr(os, "pidfd_open")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listener(len(mesh.replicas))) if can and rank == first else None
        address = None if listener is None else listener.getsockname()
        reported = gather((_host() if can else None, address))
        hosts, address = {reported[each][0] for each in mesh.replicas}, reported[first][1]
        is_together = len(hosts) == 1 and None not in hosts
        connected = _connected(address, rank) if is_together and rank != first else None
        is_whole = gather(is_together and (rank == first or connected is not None))
        if not all(is_whole[each] for each in mesh.replicas):
            if connected is not None:
                connected[0].close()
            return None
        if connected is not None:
            return ProducerLink(first, connected[1], connected[0])
        neighbours = {} if listener is None else _accepted(listener, mesh.replicas[1:])
        return SharedWorkers(neighbours) if neighbours else None


def _host() -> tuple[str, str, int, int]:
    """Return what only processes have in common that can connect, and that see each other's process ids."""
    boot = text_of("/proc/sys/kernel/random/boot_id").strip()
    return socket.gethostname(), boot, os.getuid(), Path("/proc/self/ns/pid").stat().st_ino


def _listener(num_ranks: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(_CONNECT_S)
    listener.bind(f"\0fkat_data-{os.getpid()}-{secrets.token_hex(8)}")  # a name without a file
    listener.listen(num_ranks)
    return listener


def _connected(address: bytes, rank: int) -> tuple[socket.socket, int] | None:
    """Return a connection to the first rank, and its process id; None: it cannot be reached."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(_CONNECT_S)
        sock.connect(address)
        sock.sendall(_RANK.pack(rank))
        pid, uid = _peer_of(sock)
        sock.settimeout(None)
    except genuine(OSError):
        sock.close()
        return None
    if uid != os.getuid() or not pid:
        sock.close()
        return None
    return sock, pid


def _accepted(listener: socket.socket, ranks: Sequence[int]) -> dict[int, socket.socket]:
    """Return the connections of all neighbours, which wait to be accepted; none: one of them is missing."""
    found: dict[int, socket.socket] = {}
    try:
        while len(found) < len(ranks):
            sock, _ = listener.accept()
            sock.settimeout(_CONNECT_S)
            rank = -1
            if _peer_of(sock)[1] == os.getuid():
                rank = _RANK.unpack(sock.recv(_RANK.size, socket.MSG_WAITALL))[0]
            sock.settimeout(None)
            if rank in ranks:
                found[rank] = sock
            else:
                sock.close()
    except genuine(OSError, struct.error):
        while found:
            found.popitem()[1].close()
    return found


def _peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return process and user id of the other side."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid
