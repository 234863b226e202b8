"""Ports for servers of tests."""

import random
import socket

#: Below those that the kernel gives to connections, one of which may come between the choice of a port and its use.
_PORTS = range(20_000, 32_000)
#: Of the machine: tests seed the others alike in all processes.
_rng = random.SystemRandom()


def free_port():
    """Return a port of this machine that nothing listens at."""
    while True:
        try:
            with socket.create_server(("127.0.0.1", _rng.choice(_PORTS))) as server:
                return server.getsockname()[1]
        except OSError:
            continue
