"""Runs programs in forks of an interpreter that has imported torch, which takes longer than most programs.

A program finds what it would find in an interpreter of its own, but for what that takes from its environment when it
starts, such as the seed of ``hash()``. The package is not among the imports: it knows in which process it was imported.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import types
from pathlib import Path

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

    def run(self, path, *arguments, folder, timeout=120, **variables):
        """Run a program to its end, and return what ``subprocess.run`` returns.

        Args:
            path: The program.
            *arguments: Its arguments.
            folder: Its working directory.
            timeout: The seconds after which it is killed.
            **variables: Environment variables that differ from the interpreter's.
        """
        words = [str(word) for word in (path, *arguments)]
        files = [Path(folder, f".{name}") for name in ("stdout", "stderr")]
        request = [words, str(folder), self._environment | variables, *map(str, files)]
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        pid = int(self._process.stdout.readline())
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
        code = int(self._process.stdout.readline())
        printed = [file.read_text() for file in files]
        for file in files:
            file.unlink()
        return subprocess.CompletedProcess(words, code, *printed)

    def close(self):
        """End the interpreter."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _serve():
    """Fork for each line of standard input; return in the fork the words of its program."""
    inherited = os.environ["PYTHONPATH"].split(os.pathsep)
    installed = [entry for entry in sys.path[1:] if entry not in inherited]
    for line in sys.stdin.buffer:
        words, folder, environment, *files = json.loads(line)
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            for number, name in enumerate([os.devnull, *files]):
                descriptor = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(descriptor, number)
                os.close(descriptor)
            searched = environment["PYTHONPATH"].split(os.pathsep)
            sys.path[:] = [str(Path(folder, words[0]).parent), *searched, *installed]
            return words
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    for _name in sys.argv[1:]:
        importlib.import_module(_name)
    _words = _serve()
    if _words is not None:
        sys.argv = _words
        _itself, _main = sys.modules["__main__"], types.ModuleType("__main__")
        _main.__file__ = _words[0]
        sys.modules["__main__"] = _main
        exec(compile(Path(_words[0]).read_bytes(), _words[0], "exec"), _main.__dict__)
