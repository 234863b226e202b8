"""The program of a new interpreter: a spawned worker, or the template process.

``fkat_data.worker.process.child`` starts it by its path, so that the command line is short and says what the process is. It is no
module of the package: the package's own would import torch, and a process binds its life to its trainer's before that.
"""

import contextlib
import importlib
import os
import sys

TYPE_CHECKING = False

# Nothing is imported from the working directory; that of this file is searched for one module.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]
sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120 - without the import of pathlib
if TYPE_CHECKING:
    from fkat_data.worker.process import lifeline
else:
    import lifeline
del sys.path[0], sys.modules[lifeline.__name__]


def main(title: str, program: str, numbers: str, *variables: str) -> None:
    """Be what the arguments say.

    Args:
        title: The title of the process.
        program: ``worker`` or ``template``.
        numbers: The descriptor of the working directory to enter, -1 for none, and the numbers for the program.
        variables: Environment variables to set, as ``name=value``, and the names of those to remove.
    """
    folder, *others = map(int, numbers.split(","))
    if folder >= 0:
        os.fchdir(folder)
        os.close(folder)
    for variable in variables:
        name, is_set, value = variable.partition("=")
        if is_set:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    (be_worker if program == "worker" else be_template)(title, *others)


def be_worker(
    title: str, settings: int, channel: int, page: int, own_lifeline: int, stacks: int, worker_index: int, signal: int
) -> None:
    """Be a worker until its trainer is gone.

    Args:
        title: Its title.
        settings: The shipped settings: a pickled list of the paths to import from, then the pickled settings proper.
        channel: The worker's end of the pipe.
        page: Where it reports its stages.
        own_lifeline: Its lifeline.
        stacks: Where it writes its stacks, those of the imports that follow included.
        worker_index: Its number among its loader's.
        signal: The signal that makes it write them.
    """
    lifeline.bind(own_lifeline)
    lifeline.write_stacks_on_signals(signal, stacks)
    import mmap  # noqa: PLC0415 - not before the process is bound
    import pickle  # noqa: PLC0415 - as above

    file = mmap.mmap(settings, 0, access=mmap.ACCESS_COPY)
    os.close(settings)
    sys.path[:], sys.argv = pickle.load(file)
    from fkat_data.worker.process.main import main as be_spawned  # noqa: PLC0415 - from where the trainer imports

    be_spawned(file, worker_index, channel, page, title)


def be_template(title: str, control: int, own_lifeline: int, idle_ms: int) -> None:
    """Be the template process until its trainer is gone, or it had nothing to do for a while.

    Args:
        title: Its title.
        control: The socket on which first the paths to import from come, then requests.
        own_lifeline: Its lifeline.
        idle_ms: Milliseconds without a child after which it ends.
    """
    import gc  # noqa: PLC0415 - see above

    lifeline.bind(own_lifeline)
    # No garbage is looked for while everything that is imported stays.
    gc.disable()
    import pickle  # noqa: PLC0415 - as above
    import socket  # noqa: PLC0415 - as above

    requests = socket.socket(fileno=control)
    requests.set_inheritable(False)
    sys.path[:] = pickle.loads(requests.recv(1 << 20))
    importlib.import_module("numpy")
    # numpy's OpenBLAS has threads, which it stops at a fork and starts again when it needs them: the fork of a process
    # that is small yet is a fast one.
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - their number is enough
        if os.fork() == 0:
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            os.wait()
    from fkat_data.worker.process.forkserver_main import run  # noqa: PLC0415 - as above

    run(requests, own_lifeline, idle_ms, title)


if __name__ == "__main__":
    main(*sys.argv[1:])
