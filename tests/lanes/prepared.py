"""Runs programs in forks of an interpreter that has imported torch, which takes longer than most programs.

A program finds what it would find in an interpreter of its own, but for what that takes from its environment when it
starts, such as the seed of ``hash()``. The package is not among the imports: it knows in which process it was imported.
"""

import contextlib
import gc
import importlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import types
from pathlib import Path

from free_ports import free_port

__all__ = ["PreparedInterpreter"]


class PreparedInterpreter:
    """The interpreter; programs run in it one after another.

    Args:
        *modules: What it imports for all of them.
        **variables: Environment variables that differ from this process's, for it and for the programs.
    """

    def __init__(self, *modules, **variables):
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._environment = {**os.environ, "PYTHONPATH": path, **variables}
        command = [sys.executable, __file__, *modules]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment, bufsize=0
        )

    def run(self, path, *arguments, folder, timeout=240, **variables):
        """Run a program to its end, and return what ``subprocess.run`` returns.

        Args:
            path: The program.
            *arguments: Its arguments.
            folder: Its working directory.
            timeout: The seconds after which it is killed.
            **variables: Environment variables that differ from the interpreter's.
        """
        return self.run_together([(path, *arguments)], folder=folder, timeout=timeout, variables=[variables])[0]

    def run_ranks(self, number, path, *arguments, folder, timeout=240, **variables):
        """Run a program as each rank of a job on this machine; return what ``run`` returns, for each."""
        job = {
            "WORLD_SIZE": number,
            "LOCAL_WORLD_SIZE": number,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
        }
        ranks = [{**variables, **job, "RANK": rank, "LOCAL_RANK": rank} for rank in range(number)]
        return self.run_together([(path, *arguments)] * number, folder=folder, timeout=timeout, variables=ranks)

    def found_by_ranks(self, number, text, folder):
        """Run a text as each rank of a job, with a folder as its argument; return what each wrote into it as JSON."""
        (folder / "program.py").write_text(text)
        for rank in self.run_ranks(number, folder / "program.py", folder, folder=folder):
            assert rank.returncode == 0, rank.stderr
        return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(number)]

    def run_together(self, commands, *, folder, timeout=240, variables):
        """Run programs side by side to their ends; return what ``run`` returns, for each.

        Args:
            commands: Each program with its arguments.
            folder: Their working directory.
            timeout: The seconds after which all are killed.
            variables: Environment variables of each that differ from the interpreter's.
        """
        folders = [folder] * len(commands)
        return self.start(commands, folders=folders, variables=variables).wait(timeout)

    def start(self, commands, *, folders, variables):
        """Start programs as ``run_together`` does, each in a folder of its own; no others run until they are waited for."""
        words = [[str(word) for word in command] for command in commands]
        files = [[Path(folder, f".{name}-{i}") for name in ("stdout", "stderr")] for i, folder in enumerate(folders)]
        environments = [self._environment | {name: str(value) for name, value in own.items()} for own in variables]
        requests = [
            [command, str(folder), environment, *map(str, written)]
            for command, folder, environment, written in zip(words, folders, environments, files, strict=True)
        ]
        for file in itertools.chain(*files):
            file.touch()  # who looks into it may come before the program
        self._process.stdin.write(json.dumps(requests).encode() + b"\n")
        return Programs(self._process.stdout, words, files)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """End the interpreter."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Programs:
    """Programs that were started together.

    Attributes:
        pids: Their process ids.
        files: For each, the files that it writes its output and its errors to, until they are waited for.
    """

    def __init__(self, codes, words, files):
        self._codes = codes
        self._words = words
        self.files = files
        self.pids = json.loads(codes.readline())

    def wait(self, timeout=240):
        """Return what ``subprocess.run`` returns, for each; kill all after ``timeout`` seconds."""
        if not select.select([self._codes], [], [], timeout)[0]:
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):  # others have waited for it
                    os.kill(pid, signal.SIGKILL)
        done = []
        for code, words, files in zip(json.loads(self._codes.readline()), self._words, self.files, strict=True):
            done.append(subprocess.CompletedProcess(words, code, *(file.read_text() for file in files)))
            for file in files:
                file.unlink()
        return done


def _serve():
    """Fork for each program of a line of standard input; return in the fork the words of its program."""
    inherited = os.environ["PYTHONPATH"].split(os.pathsep)
    installed = [entry for entry in sys.path[1:] if entry not in inherited]
    for line in sys.stdin.buffer:
        children = []
        for words, folder, environment, *files in json.loads(line):
            child = os.fork()
            if child == 0:
                _enter(folder, environment, files)
                searched = environment["PYTHONPATH"].split(os.pathsep)
                sys.path[:] = [str(Path(folder, words[0]).parent), *searched, *installed]
                return words
            children.append(child)
        print(json.dumps(children), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
    return None


def _enter(folder, environment, files):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate([os.devnull, *files]):
        descriptor = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)


if __name__ == "__main__":
    for _name in sys.argv[1:]:
        importlib.import_module(_name)
    gc.freeze()  # a fork that looked at it would copy its pages
    _words = _serve()
    if _words is not None:
        sys.argv = _words
        _itself, _main = sys.modules["__main__"], types.ModuleType("__main__")
        _main.__file__ = _words[0]
        sys.modules["__main__"] = _main
        exec(compile(Path(_words[0]).read_bytes(), _words[0], "exec"), _main.__dict__)
