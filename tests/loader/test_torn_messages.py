"""A worker that could send only a part of a message must not go on: the next one would be read as the rest of it."""

import errno
import os
import socket

import numpy as np
import pytest

from fkat_data import WorkerDiedError
from fkat_data.transport import channel


def tearing(shard):
    """Let the socket of the worker that this is take three bytes of its next message, and nothing after them."""
    taken = []

    def send(sock, data, flags=0):
        if taken:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        taken.append(data)
        return super(socket.socket, sock).send(data[:3], flags)

    socket.socket.sendmsg = lambda sock, buffers, ancillary, flags=0: send(sock, buffers[0], flags)
    socket.socket.send = send
    channel._LONGEST_FULL_S = 0.05
    return [np.zeros(100_000), np.ones(100_000)]


@pytest.mark.parametrize("start_method", ["template", "spawn"])
def test_a_worker_that_sends_a_part_of_a_message_dies_and_its_last_words_say_why(remote, start_method):
    with remote(["a"], tearing, start_method=start_method) as loader:
        with pytest.raises(WorkerDiedError, match=r"3 of a message's \d+ bytes.*No buffer space available") as caught:
            next(iter(loader))
        assert "TornFrameError" in caught.value.last_words
