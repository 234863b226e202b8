"""The worker processes of a program's loaders, as the system shows them: tests need nothing of a loader to find one."""

import os

import psutil
from leavings import SHARED, processes

__all__ = ["importer_pids", "own_template_pids", "parent_pids", "template_pids", "worker_pids"]


def template_pids():
    """Return the ids of the template processes of this process: its own, and those that tests share."""
    found = {number for _, number in SHARED}
    for child in psutil.Process().children():
        try:
            if "fkat_data: template" in " ".join(child.cmdline()):
                found.add(child.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def own_template_pids():
    """Return the ids of the template processes that a test has started, without the one that all tests share."""
    return template_pids() - {number for _, number in SHARED}


def worker_pids():
    """Return the ids of the living workers of this process's loaders, oldest first, without processes of their own."""
    found = []
    servers = template_pids() | parent_pids() | importer_pids()
    for _, number in processes():
        try:
            process = psutil.Process(number)
            is_worker = number not in servers and process.ppid() in {os.getpid(), *servers}
            if is_worker and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.create_time(), number))
        except psutil.NoSuchProcess:
            continue
    return [number for _, number in sorted(found)]


def parent_pids():
    """Return the ids of the processes that have opened a loader's shipment, and that workers are forks of."""
    return _named("fkat-parent")


def importer_pids():
    """Return the ids of the processes that have imported what shipments name."""
    return _named("fkat-importer")


def _named(name):
    found = set()
    for _, number in processes():
        try:
            process = psutil.Process(number)
            # A fork of it is called as it is at first.
            if process.name() == name and psutil.Process(process.ppid()).name() != name:
                found.add(number)
        except psutil.NoSuchProcess:
            continue
    return found
