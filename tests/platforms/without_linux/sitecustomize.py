"""Makes Linux look like macOS to the package, in every process whose PYTHONPATH has this folder.

What macOS does not have is removed at once. ``sys.platform`` changes when the package is first imported: by then torch
and the standard library have looked at it. ``/proc`` and ``/dev/shm`` are gone for the package's own calls.
"""

import fcntl
import importlib.util
import inspect
import os
import resource
import signal
import socket
import sys
import sysconfig
from pathlib import Path

import quick_import  # noqa: F401 - the sitecustomize of all programs of tests imports it, and this one hides that

_MISSING = {
    os: (
        *("memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "posix_fallocate", "posix_fadvise", "eventfd"),
        *("eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "pidfd_open", "P_PIDFD", "waitid"),
        *("sched_getaffinity", "sched_setaffinity", "sched_getscheduler", "getresuid", "getresgid", "O_PATH"),
        *("O_TMPFILE", "copy_file_range", "splice", "pipe2"),
    ),
    socket: ("MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL", "SOCK_SEQPACKET", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
    fcntl: (
        *("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_GROW", "F_SEAL_SEAL"),
        *("F_SEAL_SHRINK", "F_SEAL_WRITE", "F_SETSIG", "F_GETSIG"),
    ),
    signal: ("SIGRTMAX", "SIGRTMIN", "SIGPOLL", "SIGPWR", "SIGSTKFLT", "sigtimedwait", "sigwaitinfo"),
    resource: ("prlimit",),
}
_GONE = ("/proc", "/dev/shm")
_STANDARD = (sysconfig.get_path("stdlib") + "/", "<frozen")
#: What looks at sys.platform while it is imported, and is not imported before the package needs it.
_FIRST = (
    *(
        "torch",
        "torch.utils.data",
        "numpy",
        "psutil",
        "cloudpickle",
        "asyncio",
        "ctypes.util",
        "subprocess",
        "tempfile",
    ),
    *("multiprocessing.spawn", "multiprocessing.popen_spawn_posix", "multiprocessing.resource_tracker", "uuid"),
    *("multiprocessing.popen_fork", "multiprocessing.connection", "multiprocessing.shared_memory", "ssl", "fsspec"),
    *("concurrent.futures", "urllib.request", "shutil", "platform"),
)


def _change():
    for module, names in _MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.modules["tempfile"]._O_TMPFILE_WORKS = False
    # macOS ignores it when it sends: a socket that does not wait has to be one.
    socket.MSG_DONTWAIT = 0


class _AtTheFirstImport:
    """Comes first of all finders, and finds nothing."""

    def find_spec(self, name, path=None, target=None):
        if name == "fkat_data" and self in sys.meta_path:
            sys.meta_path.remove(self)
            for needed in _FIRST:
                if importlib.util.find_spec(needed):
                    importlib.import_module(needed)
            _change()
            sys.platform = "darwin"
            sys.addaudithook(_refuse)


def _refuse(event, arguments):
    """Let the package find neither a path of Linux's, nor what macOS cannot do with shared memory."""
    if event in ("open", "os.listdir", "os.scandir", "subprocess.Popen"):
        path = arguments[2] if event == "subprocess.Popen" else arguments[0]
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(_GONE) and _is_package():
            raise FileNotFoundError(2, "macOS has no such file", path)
    elif event in ("fcntl.lockf", "fcntl.flock", "os.truncate") and isinstance(arguments[0], int):
        found = os.fstat(arguments[0])
        is_sized = event != "os.truncate" or found.st_size > 0
        if found.st_nlink == 0 and found.st_dev == _SHARED_DEVICE and is_sized:
            raise OSError(22, f"macOS cannot do this with shared memory: {event}")


def _is_package():
    """Return whether a file of the package's made the call, or the standard library for one."""
    frame = inspect.currentframe().f_back.f_back
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_STANDARD) or "site-packages" in name:
            return "/fkat_data/" in name
        frame = frame.f_back
    return False


_SHARED_DEVICE = Path("/dev/shm").stat().st_dev
sys.meta_path.insert(0, _AtTheFirstImport())
