"""What a function does in a fork of this process."""

import os
import sys
import traceback

__all__ = ["in_child"]


def in_child(work, prepare=lambda: None):
    """Return how a fork ends: 0 if what it did is true, 2 for an error, minus a signal's number if that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            prepare()
            code = 0 if work() else 1
        except BaseException:  # noqa: BLE001 - told by the exit code
            traceback.print_exc()
        finally:
            sys.settrace(None)
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
