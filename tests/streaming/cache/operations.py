"""A process whose every operation on files, while it uses a cache, fails once or is its last: a program.

The interpreter reports each call into the operating system to a profile function that this program installs, before
the call: what that raises is raised instead of it. What closes a file fails after the call, as a file is closed though
that fails. Between two such calls nothing changes that another process sees.

Its arguments: a folder, "all" or "first" (one of each kind of call in each line), then actions. It prints how many
operations were tried, and ends with an error if what a fresh process finds afterwards is not right.
"""

import errno
import io
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

from cache_examples import content, get, is_exact, is_right, is_shard, leftovers_in, map_from, shards_in

import fkat_data
from fkat_data.streaming.cache import Cache, CacheBudget, DatasetVersion

SIZES = {"a.mds": 300, "x/b.mds": 500, "c.mds": 400, "d.mds": 0, "e.mds": 450}
LIMIT_BYTES = 1000
ENDS = {"kill": -9, "segv": -11, "exit0": 0}
PACKAGE = str(Path(fkat_data.__file__).parent)
MODULES = {"posix", "fcntl", "_io"}
CLOSING = {"close", "__exit__"}
#: They ask this process and not the operating system.
WITHIN = {"_exit", "fspath", "getpid", "geteuid", "fileno", "register_at_fork"}


def use(directory):
    """What a job does: adopt the directory, which had another version's files, and ask for files."""
    version = DatasetVersion(directory)
    version.adopt("new", lambda old: ["old.mds", "a.mds"] if old == "old" else [])
    cache = Cache(directory, CacheBudget([directory], LIMIT_BYTES, is_shard))
    version.hold()
    for name, size_bytes in SIZES.items():
        path = get(cache, name, size_bytes)
        assert is_right(path, name, size_bytes)
        if name == "c.mds":
            # Until this function returns, or its process dies; the next file evicts others.
            kept = map_from(cache, name, size_bytes)
    assert bytes(kept) == content("c.mds", SIZES["c.mds"])
    assert (directory / "c.mds").exists()
    assert not (directory / "old.mds").exists()
    assert version.recorded == "new"


class Operations:
    """Counts the operations of this process, and acts before one of them.

    Args:
        chosen: Its number, or -1.
        action: What happens.
        on_pass: Called with the site of each operation: the line of the package that it comes from, and its name.
    """

    def __init__(self, chosen, action, on_pass=lambda site: None):
        self.chosen, self.action, self.on_pass = chosen, action, on_pass
        self.count = -1
        self.closing = None

    def __call__(self, frame, event, function):
        if event == "c_return" and self.closing == function:
            self.closing = None
            act(self.action)
        if event == "c_call":
            owner = type(getattr(function, "__self__", None))
            module = "_io" if issubclass(owner, io.IOBase) else function.__module__ or owner.__module__
            if module not in MODULES or function.__name__ in WITHIN:
                return
            name = function.__name__
        elif (
            event == "call" and frame.f_code.co_filename.endswith("cache/paths.py") and frame.f_code.co_name == "_call"
        ):
            name = "a call through ctypes"
        else:
            return
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        if frame is None:
            return
        self.count += 1
        self.on_pass(f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno} {name}")
        if self.count == self.chosen:
            if name in CLOSING and self.action not in ENDS:
                self.closing = function
            else:
                act(self.action)


def act(action):
    match action:
        case "kill" | "segv":
            os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSEGV)
        case "exit0":
            os._exit(0)
        case "raise":
            raise RuntimeError("injected")
        case _:
            raise OSError(getattr(errno, action), "injected")


def in_child(work, directory, operations=None):
    """Return how a child that works on a directory ends: 0, 3 for an error, or minus a signal's number."""
    pid = os.fork()
    if not pid:
        code = 4
        try:
            sys.setprofile(operations)
            work(directory)
            code = 0
        except (OSError, RuntimeError) as error:
            code = 3 if "injected" in str(error) else 4
        finally:
            sys.setprofile(None)
            if code == 4:
                traceback.print_exc()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prepare(directory):
    DatasetVersion(directory).adopt("old", lambda old: [])
    (directory / "old.mds").write_bytes(b"old")
    # Of the old version, and as long as the new one's.
    (directory / "a.mds").write_bytes(b"x" * SIZES["a.mds"])
    (directory / "index.json").write_bytes(b"{}")


def check(directory):
    assert is_exact(directory)
    use(directory)
    assert is_exact(directory)
    assert leftovers_in(directory) == []
    assert CacheBudget([directory], None).usage_bytes <= LIMIT_BYTES
    for name in shards_in(directory):
        assert is_right(directory / name, name, SIZES[name]), name


def sites_of(folder, prepared):
    """Return the site of each operation of a run without a fault."""
    shutil.copytree(prepared, folder / "sites")
    with (folder / "sites.txt").open("w") as file:
        recorder = Operations(-1, "", lambda site: print(site, file=file, flush=True))
        assert in_child(use, folder / "sites", recorder) == 0
    return (folder / "sites.txt").read_text().splitlines()


def sweep(folder, which, actions):
    prepared = folder / "prepared"
    assert in_child(prepare, prepared) == 0
    sites = sites_of(folder, prepared)
    chosen = (
        range(len(sites)) if which == "all" else sorted({site: n for n, site in reversed([*enumerate(sites)])}.values())
    )
    num_errors = 0
    for action in actions:
        for number in chosen:
            directory = folder / f"{action}-{number}"
            shutil.copytree(prepared, directory)
            code = in_child(use, directory, Operations(number, action))
            assert code in ((ENDS[action],) if action in ENDS else (0, 3)), (action, number, sites[number], code)
            num_errors += code == 3
            assert in_child(check, directory) == 0, (action, number, sites[number])
            shutil.rmtree(directory)
    names = sorted({site.split(" ", 1)[1] for site in sites})
    print(json.dumps({"operations": len(sites), "tried": len(chosen), "errors": num_errors, "names": names}))


if __name__ == "__main__":
    sweep(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
