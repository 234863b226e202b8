"""Titles of this library's processes: what ``ps``, ``top`` and ``nvidia-smi`` show of them.

A new interpreter has its title among its arguments, where any system shows it. On Linux, and on macOS if setproctitle is
installed, the title then takes the place of the whole command line.
"""

import functools
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import text_of

TEMPLATE_NAME, IMPORTER_NAME, PARENT_NAME = "fkat-template", "fkat-importer", "fkat-parent"
"""Short names of the template, of an importer, and of a loader's parent."""
PARENT_ROLE = "parent of workers"
_MOST_CHARACTERS = 40
_START, _END = 45, 46
"""Where ``/proc/self/stat`` has the addresses of the arguments, counted behind the name of the program."""


def process_title(role: str, loader_name: str = "") -> str:
    """Return the title of a process that this one starts, such as ``fkat_data: worker 3 of 8, DataLoader in train.py (4711)``.

    Args:
        role: What it is to be.
        loader_name: The class of the loader that has it; empty: all of the program's loaders do.
    """
    words: Any = getattr(sys, "argv", None) or [""]
    path = Path(str(words[0]))
    program = {"": "python", "-c": "python -c", "__main__.py": path.parent.name}.get(path.name, path.name)
    owner = f"{_printable(loader_name)} in " if loader_name else ""
    return f"fkat_data: {role}, {owner}{_printable(program)} ({os.getpid()})"


def worker_name(worker_index: int) -> str:
    """Return the short name of a worker.

    Args:
        worker_index: The worker's number among its loader's.
    """
    return f"fkat-worker-{worker_index}"


def set_title(title: str, name: str) -> None:
    """Give this process a title and a short name, if the system lets it.

    Args:
        title: Replaces the command line. Without setproctitle, one that is longer than that is replaced by its beginning,
            or by the short name.
        name: What ``top`` and ``ps -e`` show; Linux takes 15 characters.
    """
    set_by_package = title_setter()
    if set_by_package is not None:
        set_by_package(title)
    if sys.platform == "linux":
        with suppress(OSError, ValueError, IndexError):  # a system that has only part of /proc
            if text_of("/proc/self/cmdline").rstrip("\0") != title:
                _write_over_arguments([title, title.partition(",")[0], name])
            Path("/proc/self/comm").write_text(name, encoding="utf-8")


@functools.cache
def title_setter() -> Any:
    """Return the function of setproctitle; None: it is not installed. To be called before a fork that is to have it."""
    try:
        return import_module("setproctitle").setproctitle
    except genuine(ImportError):
        return None


def _write_over_arguments(titles: Sequence[str]) -> None:
    """Write the first title for which there is room to where the system reads this process's arguments.

    Raises:
        OSError: The system does not let a process write to its own memory in this way.
    """
    numbers = text_of("/proc/self/stat").rpartition(")")[2].split()
    start, end = int(numbers[_START]), int(numbers[_END])
    fitting = next((title for title in map(str.encode, titles) if len(title) + 2 <= end - start), None)
    if start > 0 and fitting is not None:
        # By a file: where there is no such memory, this is an error and no crash. The last byte is not zero: this tells
        # Linux that what is there is one title, which ends before.
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(fitting.ljust(end - start - 1, b"\0") + b".")


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)[:_MOST_CHARACTERS]
