"""Every line of the package that a process passes is an instant at which a test lets this process fail.

The interpreter reports the lines to a trace function that the test's own code installs: a trainer's program calls
``watch``, a worker does when the factory arrives that a test has passed to the loader. So the package has no places
for faults and nothing that arms them, and the process of anybody else cannot be made to fail.
"""

import errno
import functools
import inspect
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import fkat_data

DEATHS = ("kill", "exit0", "segv")

_PACKAGE = f"{Path(fkat_data.__file__).parent}{os.sep}"
_SLEEP_S = 0.25


class Watched:
    """A factory with which ``watch`` reaches the workers of a loader; in the process that makes it nothing happens."""

    def __init__(self, factory, folder, armed=()):
        self.factory, self.folder, self.armed = factory, folder, list(armed)

    def __call__(self, shard):
        return self.factory(shard)

    def __reduce__(self):
        return _arrive, (self.factory, self.folder, self.armed)


def _arrive(factory, folder, armed):
    watch(folder, armed)
    return factory


def watch(folder, armed=()):
    """Follow this thread, and those that it starts, through the package.

    Args:
        folder: Where it is written what was passed, and what has happened; it is there.
        armed: What is to happen: (place, occurrence, action). A place is ``file:line``, or ``file:function()`` for
            its call. Each happens once, in the first process that passes the place so often. Without any, the process
            writes down what it passes.
    """
    passed = Counter()
    log = -1 if armed else os.open(folder / f"passed-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def trace(frame, event, argument):
        code = frame.f_code
        # While an interpreter ends, modules have lost their names.
        if _PACKAGE is None or not code.co_filename.startswith(_PACKAGE) or code.co_name == "<module>":
            return None
        if event in ("call", "line"):
            instant = f"{code.co_qualname}()" if event == "call" else frame.f_lineno
            place = f"{code.co_filename.removeprefix(_PACKAGE)}:{instant}"
            passed[place] += 1
            if log >= 0:
                os.write(log, f"{place}\n".encode())
            for armed_place, occurrence, action in armed:
                if armed_place == place and occurrence == passed[place] and _is_first(folder, place, occurrence):
                    _act(action, place)
        return trace

    # The functions that are under way.
    frame = inspect.currentframe().f_back
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            frame.f_trace = trace
        frame = frame.f_back
    threading.settrace(trace)
    sys.settrace(trace)


def _is_first(folder, place, occurrence):
    try:
        _claim(folder, place, occurrence).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _claim(folder, place, occurrence):
    return folder / f"happened-{place.replace('/', '.')}-{occurrence}"


def has_happened(folder, place, occurrence):
    """Whether an armed instant was passed."""
    return _claim(folder, place, occurrence).exists()


def passes(folder):
    """Return how often each place was passed by the process that passed it most often, in the order of first passes."""
    most = {}
    for path in sorted(folder.glob("passed-*")):
        for place, count in Counter(path.read_text().splitlines()).items():
            most[place] = max(count, most.get(place, 0))
    return most


def _act(action, place):
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit0":
            os._exit(0)
        case "sleep":
            time.sleep(_SLEEP_S)
        case "raise":
            raise RuntimeError(f"injected at {place}")
        case _:
            number = getattr(errno, action)
            raise OSError(number, f"injected at {place}: {os.strerror(number)}")


@functools.cache
def _lines(file):
    return Path(_PACKAGE, file).read_text().splitlines()


def place_of(file, text):
    """Return the place of the one line of a file that contains a text."""
    (number,) = (number for number, line in enumerate(_lines(file), start=1) if text in line)
    return f"{file}:{number}"
