"""An exception that a signal's handler raised is told from one of the code that it interrupted, whatever its class."""

import ast
import functools
import inspect
import os
import queue
import re
import signal
import threading
import warnings
from pathlib import Path

import pytest

import fkat_data
from fkat_data.runtime.interruption import genuine, is_interruption, suppress
from fkat_data.runtime.lifetime import Descriptor, WeakTable, on_collected

ROOT = Path(fkat_data.__file__).parent
KINDS = [
    TimeoutError,
    BlockingIOError,
    UnicodeError,
    EOFError,
    KeyError,
    StopIteration,
    FileNotFoundError,
    RuntimeError,
]


@pytest.fixture
def handlers():
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


def interrupted():
    os.kill(os.getpid(), signal.SIGUSR1)
    return sum(range(10))


def styles(kind):
    """Yield handlers as users write them, each of which raises."""

    def plain(number, frame):
        raise kind("from a handler")

    def once(number, frame):
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        plain(number, frame)

    def of_any_arguments(*_):
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        raise kind("from a handler")

    class Alarm:
        def __call__(self, number, frame):
            raise kind("from a handler")

        def method(self, number, frame):
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            raise kind("from a handler")

    def with_more(text, number, frame):
        raise kind(text)

    yield from (plain, once, of_any_arguments, Alarm(), Alarm().method)
    yield functools.partial(with_more, "from a handler")


def test_a_function_under_the_decorator_of_the_handler_is_no_handler(handlers):
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @logged
    def handler(number, frame):
        raise OSError("from a handler")

    @logged
    def read(path):
        raise OSError(f"no {path}")

    handlers(handler)
    with suppress(OSError):
        read("file")
    with pytest.raises(OSError, match="from a handler"), suppress(OSError):
        interrupted()


def test_a_helper_that_is_given_a_frame_is_no_handler():
    def log(level, frame):
        raise OSError("the log is full")

    with suppress(OSError):
        log(1000, inspect.currentframe())


@pytest.mark.parametrize("style", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_handler_raises_passes_whatever_its_class(kind, style, handlers):
    handler = list(styles(kind))[style]

    def caught_by_except():
        try:
            interrupted()
        except genuine(kind, OSError):
            return "swallowed"

    def caught_by_suppress():
        with suppress(kind, OSError):
            interrupted()

    for call in (caught_by_except, caught_by_suppress):
        handlers(handler)
        with pytest.raises(kind, match="from a handler"):
            call()


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_code_itself_raises_is_caught_beside_a_handler(kind, handlers):
    handlers(next(styles(kind)))

    def failing(number, frame=None):
        raise kind(number)

    found = []
    try:
        failing(1)
    except genuine(kind) as error:
        found.append(is_interruption(error))
    with suppress(kind):
        failing(2)
    assert found == [False]
    with pytest.raises(ZeroDivisionError), suppress(OSError, ValueError):
        _ = 1 // 0


def test_what_a_system_call_raises_is_caught(handlers):
    handlers(next(styles(FileNotFoundError)))
    found = []
    try:
        os.rmdir("/nothing/here")  # noqa: PTH106 - as a call of C
    except genuine(FileNotFoundError, NotADirectoryError) as error:
        found.append(error.filename)
    with suppress(OSError):
        Path("/nothing/here").unlink()
    assert found == ["/nothing/here"]


def test_a_handler_that_calls_the_package_handles_its_own_errors(handlers):
    found = []

    def handler(number, frame):
        try:
            Path("/nothing/here").unlink()
        except genuine(OSError) as error:
            found.append(error)

    handlers(handler)
    interrupted()
    assert len(found) == 1


#: Nothing of these runs in a caller's thread of a training loop: tools of the command line, writers, and what a process
#: of the package runs in its main thread, where it has no handlers of a user's.
ELSEWHERE = ("tools/", "testing/", "streaming/writing/", "worker/")
IN_CALLERS_THREAD = [
    f"worker/{name}.py"
    for name in [
        "batches",
        "collate",
        "fetch",
        "inline",
        "messages",
        "process/child",
        "process/forkserver",
        "process/handle",
        "process/inherited_environment",
        "process/process_client",
        "process/ship",
        "produce",
    ]
]
OWN = {
    name
    for name, value in vars(fkat_data.errors).items()
    if isinstance(value, type) and value.__module__ == "fkat_data.errors"
}


def catching(tree):
    """Yield what catches exceptions of others in functions, and does not raise them again."""
    definitions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for node in (each for definition in definitions for each in ast.walk(definition)):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {ast.unparse(kind) for kind in kinds}
            is_raised_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if not is_raised_again and "BaseException" not in names:
                yield node.lineno, names
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "suppress":
            yield node.lineno, {ast.unparse(kind) for kind in node.args}


@pytest.mark.long
def test_no_code_in_the_callers_thread_goes_by_the_class_of_an_exception_alone():
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        path = str(file.relative_to(ROOT))
        if path.startswith(ELSEWHERE) and path not in IN_CALLERS_THREAD:
            continue
        tree = ast.parse(file.read_text())
        own = OWN | {"ChannelClosed", "WorkerGone", "TornFrameError", "_BrokenError", "StatusError", "ContentError"}
        own |= {"FinalError", "EncodingError", "UnfitValueError"}
        found += [
            f"{path}:{line} {', '.join(sorted(names))}"
            for line, names in catching(tree)
            if not names <= own and not any(name.startswith("genuine(") for name in names)
        ]
    assert not found, "use genuine() or suppress() of fkat_data.runtime.interruption:\n" + "\n".join(found)


#: A writer's end is no part of a training loop, and the other is about finalizers of users.
WITH_FINALIZERS = {"streaming/writing/writer.py"}


def test_no_code_of_python_runs_where_the_callers_thread_drops_an_object():
    """Python prints what a handler raises there, and goes on."""
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        path = str(file.relative_to(ROOT))
        text = file.read_text()
        # To parse each file takes seconds.
        for node in ast.walk(ast.parse(text)) if re.search(r"finalize|Weak|__del__", text) else ():
            is_call = isinstance(node, ast.Call) and ast.unparse(node.func) in {"weakref.finalize", "finalize"}
            is_class = isinstance(node, (ast.Name, ast.Attribute)) and re.search(
                r"\b(WeakSet|WeakValueDictionary|WeakKeyDictionary|WeakMethod)$", ast.unparse(node)
            )
            is_method = isinstance(node, ast.FunctionDef) and node.name == "__del__"
            if (is_call or is_class or is_method) and path not in WITH_FINALIZERS:
                found.append(f"{path}:{node.lineno}")
    assert not found, "use fkat_data.runtime.lifetime:\n" + "\n".join(found)


class Owner:
    pass


def test_a_table_forgets_what_is_gone_and_keeps_what_lives():
    table, kept = WeakTable(), []
    for number in range(1000):
        owner = Owner()
        table[number] = owner
        if number % 100 == 0:
            kept.append(owner)
    del owner
    assert table.values() == kept
    assert table.get(1) is None
    assert table.get(100) is kept[1]
    table.pop(100)
    assert table.get(100) is None


def test_what_a_dropped_object_leaves_is_ended_in_another_thread_and_an_error_of_one_spares_the_others(caplog):
    calls, owners = queue.SimpleQueue(), [Owner(), Owner()]
    on_collected(owners[0], lambda: 1 / 0)
    on_collected(owners[1], lambda: calls.put(threading.get_ident()))
    del owners[0]  # the one whose action fails
    owners.clear()
    assert calls.get(timeout=30) != threading.get_ident()
    assert "ZeroDivisionError" in caplog.text


def test_a_descriptor_closes_once_and_without_a_warning():
    reading, writing = os.pipe()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        end = Descriptor(writing)
        del end
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert not caught


DROPPED = """
import os, signal, sys
import torch
from fkat_data.runtime.lifetime import Descriptor, WeakTable, on_collected

class Owner:
    pass

raised = caught = 0
armed = False

def handler(number, frame):
    global raised, armed
    if armed:
        armed = False
        raised += 1
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
table = WeakTable()
for number in range(int(sys.argv[1])):
    try:
        signal.setitimer(signal.ITIMER_REAL, 20e-6 + (number % 40) * 5e-6)
        armed = True
        for _ in range(40):
            owner = Owner()
            table[0] = owner
            on_collected(owner, int)
            descriptor = Descriptor(os.dup(0))
        armed = False
    except KeyboardInterrupt:
        caught += 1
assert raised == caught > 100, (raised, caught)
"""


def test_no_signal_is_lost_where_an_object_is_dropped_and_the_process_ends(run_script):
    # Each of 2,000 may interrupt a start of the thread, which the end of the process waits for.
    assert "Exception ignored" not in run_script(DROPPED, "2000").stderr
