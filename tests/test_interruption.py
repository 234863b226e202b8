"""An exception that a signal's handler raised is told from one of the code that it interrupted, whatever its class."""

import ast
import functools
import os
import signal
from pathlib import Path

import pytest

import fkat_data
from fkat_data.interruption import genuine, is_interruption, suppress

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
        "child",
        "collate",
        "failure",
        "fetch",
        "forked_child",
        "index_batches",
        "inheritance",
        "inline",
        "process",
        "produce",
        "ship",
        "spawn",
        "template_process",
    ]
]
OWN = {
    name
    for name, value in vars(fkat_data.errors).items()
    if isinstance(value, type) and value.__module__ == "fkat_data.errors"
}


def catching(tree):
    """Yield what catches exceptions of others in functions, and does not raise them again."""
    inside = {
        id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if id(node) not in inside:
            continue
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {ast.unparse(kind) for kind in kinds}
            is_raised_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if not is_raised_again and "BaseException" not in names:
                yield node.lineno, names
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "contextlib.suppress":
            yield node.lineno, {ast.unparse(kind) for kind in node.args}


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
    assert not found, "use genuine() or suppress() of fkat_data.interruption:\n" + "\n".join(found)
