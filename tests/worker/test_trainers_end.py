import fcntl
import os
import stat
import threading

import pytest

from fkat_data.worker.monitor import new_lifeline


def writing_ends():
    """The descriptors of this process that are ends of pipes, to write to."""
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers are wanted
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
            if is_pipe and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                found.add(number)
        except OSError:
            pass
    return found


@pytest.mark.usefixtures("processes")
def test_no_fork_keeps_the_trainers_end_though_another_thread_makes_some():
    before = writing_ends()
    for _ in range(10):
        made = [new_lifeline()]
        thread = threading.Thread(target=lambda made=made: made.extend(new_lifeline() for _ in range(50)))
        thread.start()
        pid = os.fork()
        if pid == 0:
            os._exit(len(writing_ends() - before))
        assert os.waitpid(pid, 0)[1] == 0
        thread.join()
        assert {end.fileno() for _, end in made} == writing_ends() - before
        for descriptor, end in made:
            end.close()
            assert os.read(descriptor, 1) == b""
            os.close(descriptor)
