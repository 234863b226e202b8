"""A signal to all processes of a job is the trainer's: whatever its number, it ends and stops no worker."""

import pytest

PROGRAM = """
import os, signal, subprocess, sys, time
import psutil
import torch
from torch.utils.data import Dataset
from fkat_data import DataLoader
from fkat_data.worker.process.lifeline import STACK_SIGNAL

name = sys.argv[1]
left_alone = {signal.SIGKILL, signal.SIGSTOP}  # and what says that the process has failed
left_alone |= {getattr(signal, f"SIG{name}") for name in ("SEGV", "BUS", "ILL", "FPE", "ABRT", "TRAP", "SYS")}
left_alone |= {STACK_SIGNAL}  # which Python may crash at
numbers = sorted(signal.valid_signals() - left_alone)
for number in numbers:
    signal.signal(number, lambda number, frame: None)

ASKED = "import signal; print([int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN])"

class Items(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if index == 0:
            rung = []
            before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            while not rung:
                time.sleep(0.001)
            signal.signal(signal.SIGALRM, before)
            ignored = eval(subprocess.run([sys.executable, "-c", ASKED], stdout=subprocess.PIPE).stdout)
            assert set(ignored) <= {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTIN, signal.SIGTTOU}, ignored
        return os.getpid()

found = []
with DataLoader(Items(), 2, num_workers=2, prefetch_factor=1, start_method=name, timeout=600) as loader:
    iterator = iter(loader)
    found.extend(next(iterator).tolist())
    below = psutil.Process().children(recursive=True)
    for number in (signal.SIGSTOP, *numbers, signal.SIGCONT):  # those of a job that was stopped come at once
        for process in below:
            process.send_signal(number)
    for number in numbers:
        for process in below:
            process.send_signal(number)
        os.kill(os.getpid(), number)
        found.extend(next(iterator).tolist())
    assert all(process.status() != psutil.STATUS_STOPPED for process in below)
    for batch in iterator:
        found.extend(batch.tolist())
    assert len(found) == 400
    assert set(found) <= {process.pid for process in below}, "a worker was replaced"
print("end", len(numbers))
"""


@pytest.mark.parametrize("start_method", ["template", "spawn", "fork"])
def test_no_signal_to_all_processes_of_a_job_ends_or_stops_a_worker(prepared, run_script, start_method):
    done = run_script(PROGRAM, start_method, by="fork")
    assert done.stdout.split()[0] == "end"
    assert int(done.stdout.split()[1]) > 20
