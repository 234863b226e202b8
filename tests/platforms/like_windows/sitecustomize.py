"""Makes Linux look like Windows to the package: what Windows does not have is gone when it is first imported."""

import importlib
import sys

_FIRST = (
    *("torch", "torch.utils.data", "numpy", "numpy.ctypeslib", "psutil", "cloudpickle", "asyncio", "subprocess"),
    *("tempfile", "multiprocessing.spawn", "concurrent.futures", "shutil", "platform", "fsspec.implementations.local"),
)
_MISSING = {
    "os": (
        *("fork", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fallocate"),
        *("eventfd", "pidfd_open", "waitid", "killpg", "setpgid", "getpgrp", "setsid", "geteuid", "getuid", "O_PATH"),
        *("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "statvfs", "pread", "pwrite", "mkfifo", "nice", "getresuid"),
        *("getpriority", "setpriority", "WNOHANG", "WEXITED", "WNOWAIT", "P_PID", "fchdir"),
    ),
    "signal": (
        *("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCHLD", "SIGALRM", "SIGRTMAX", "SIGRTMIN"),
        *("SIGPIPE", "SIGXFSZ", "SIGWINCH", "pthread_sigmask", "siginterrupt", "setitimer", "SIG_BLOCK"),
    ),
    "socket": ("AF_UNIX", "MSG_DONTWAIT", "MSG_NOSIGNAL", "MSG_CMSG_CLOEXEC", "SCM_RIGHTS", "CMSG_SPACE", "send_fds"),
    "select": ("poll", "epoll"),
    "mmap": ("PROT_READ", "PROT_WRITE", "MAP_SHARED", "MAP_POPULATE"),
    "faulthandler": ("register", "unregister"),
}
_NO_MODULES = ("_posixshmem", "_posixsubprocess", "fcntl", "resource", "termios", "pwd", "grp", "posix")


class _AtTheFirstImport:
    """Comes first of all finders, and finds nothing."""

    def find_spec(self, name, path=None, target=None):
        if name == "fkat_data" and self in sys.meta_path:
            sys.meta_path.remove(self)
            for needed in _FIRST:
                importlib.import_module(needed)
            for module, names in _MISSING.items():
                for missing in names:
                    if hasattr(importlib.import_module(module), missing):
                        delattr(sys.modules[module], missing)
            sys.modules.update(dict.fromkeys(_NO_MODULES))
            _load = sys.modules["ctypes"].CDLL

            def load(name, *arguments, **options):
                if name is None:
                    raise TypeError("Windows has no library without a name")
                return _load(name, *arguments, **options)

            sys.modules["ctypes"].CDLL = load
            sys.platform = "win32"


sys.meta_path.insert(0, _AtTheFirstImport())
