"""Starts interpreters of their own, which find what the tests find."""

import os
import subprocess
import sys

__all__ = ["environment_of", "run_python"]


def environment_of(*folders, **variables):
    """Return an environment in which Python searches these folders first, then what this process searches."""
    searched = [*map(str, folders), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(searched), **variables}


def run_python(*words, folders=(), cwd=None, expected_code=0, timeout=240, **variables):
    """Run an interpreter with these words to its end; return what it wrote, as ``subprocess.run`` does."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment_of(*folders, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == expected_code, done.stdout + done.stderr
    return done
