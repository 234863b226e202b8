import fcntl
import os
import stat
import threading

from fkat_data.worker.process.monitor import new_lifeline


def pipes_to_write_to():
    """The numbers of the pipes that this process can write to, by their descriptors."""
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers are wanted
        try:
            status = os.fstat(number)
            if stat.S_ISFIFO(status.st_mode) and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                found[number] = status.st_ino
        except OSError:
            pass
    return found


def test_no_fork_keeps_the_trainers_end_though_another_thread_makes_some(processes, tmp_path):
    kept = tmp_path / "kept"
    for _ in range(10):
        made = [new_lifeline()]
        thread = threading.Thread(target=lambda made=made: made.extend(new_lifeline() for _ in range(50)))
        thread.start()
        pid = os.fork()
        if pid == 0:
            kept.write_text(" ".join(map(str, pipes_to_write_to().values())))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        thread.join()
        # Other threads of the process that runs the tests may open pipes of their own meanwhile.
        ends = {end.fileno(): os.fstat(descriptor).st_ino for descriptor, end in made}
        assert ends.items() <= pipes_to_write_to().items()
        assert not set(map(int, kept.read_text().split())) & set(ends.values())
        for descriptor, end in made:
            end.close()
            assert os.read(descriptor, 1) == b""
            os.close(descriptor)
