"""Write to the local file of a transfer, whose errors end the transfer: the store did not cause them."""

from typing import BinaryIO

from fkat_data.interruption import genuine
from fkat_data.streaming.store.attempts import FinalError


def append(target: BinaryIO, chunk: bytes) -> None:
    """Write bytes at the position of a file.

    Raises:
        FinalError: The file cannot be written.
    """
    try:
        view = memoryview(chunk)
        while view:
            view = view[target.write(view) :]
    except genuine(OSError) as error:
        raise FinalError(error) from error


def flush(target: BinaryIO) -> None:
    """Write what a file has buffered.

    Raises:
        FinalError: The file cannot be written.
    """
    try:
        target.flush()
    except genuine(OSError) as error:
        raise FinalError(error) from error
