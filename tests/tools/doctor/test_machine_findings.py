"""Each fact of a machine is judged: what is well, what could be better, what a run would fail at."""

import pytest

from fkat_data.tools.doctor.findings import Level, machine_findings, worst_of
from fkat_data.tools.doctor.machine_facts import Accelerator, MachineFacts, read_machine

GOOD = MachineFacts(
    system="linux",
    shared_memory_error=None,
    shm_bytes=8 << 30,
    most_open_files=(4096, 4096),
    most_processes=65536,
    group_free_processes=None,
    most_file_bytes=None,
    most_address_bytes=None,
    total_bytes=32 << 30,
    free_bytes=16 << 30,
    group_free_bytes=None,
    num_cores=8,
    num_usable_cores=8,
    cpu_quota=None,
    has_pidfds=True,
    has_fixed_hash_seed=True,
    clock_source="tsc",
    clock_call_s=5e-8,
    torch_cuda="12.8",
    driver="570.1",
    accelerators=[Accelerator("H200", locks_pages=True)],
)


def test_a_good_machine_needs_no_change():
    findings = machine_findings(GOOD)
    assert worst_of(findings) is Level.OK
    assert not [finding.change for finding in findings if finding.change]


@pytest.mark.parametrize(
    ("changed", "subject", "level", "words"),
    [
        ({"shared_memory_error": "OSError: no"}, "shared memory", Level.WRONG, "OSError: no"),
        ({"shm_bytes": 64 << 20}, "/dev/shm", Level.ADVICE, "64 MiB"),
        ({"most_open_files": (256, 4096)}, "open files", Level.ADVICE, "ulimit -n 4096"),
        ({"most_open_files": (64, 64)}, "open files", Level.WRONG, "hard limit"),
        ({"most_processes": 1000}, "processes", Level.ADVICE, "ulimit -u"),
        ({"most_processes": 50}, "processes", Level.WRONG, "nproc"),
        ({"group_free_processes": 100}, "processes of the group", Level.ADVICE, "100 more"),
        ({"group_free_processes": 10}, "processes of the group", Level.WRONG, "fewer workers"),
        ({"group_free_processes": 9000}, "processes of the group", Level.OK, "9,000 more"),
        ({"most_file_bytes": 1 << 20}, "size of a file", Level.ADVICE, "1 MiB"),
        ({"most_address_bytes": 1 << 30}, "address space", Level.ADVICE, "1 GiB"),
        ({"free_bytes": 100 << 20}, "memory", Level.ADVICE, "100 MiB"),
        ({"group_free_bytes": 100 << 20}, "control group", Level.ADVICE, "100 MiB"),
        ({"group_free_bytes": 8 << 30}, "control group", Level.OK, "8 GiB"),
        ({"num_usable_cores": 1}, "cores", Level.ADVICE, "1 of 8"),
        ({"cpu_quota": 2.5}, "CPU quota", Level.ADVICE, "2.5 cores, not 8"),
        ({"cpu_quota": 8.0}, "CPU quota", Level.OK, "8 cores"),
        ({"has_pidfds": False}, "start of workers", Level.ADVICE, "imports torch"),
        ({"system": "win32"}, "start of workers", Level.WRONG, "multiprocessing=False"),
        ({"has_fixed_hash_seed": False}, "hash seed", Level.OK, "PYTHONHASHSEED=0"),
        ({"clock_call_s": 3e-6, "clock_source": "hpet"}, "clock", Level.ADVICE, "hpet, 3 µs"),
        ({"accelerators": [Accelerator("A", locks_pages=False)]}, "GPU 0", Level.ADVICE, "ulimit -l"),
        ({"accelerators": [], "torch_cuda": None}, "GPU", Level.WRONG, "without CUDA"),
        ({"accelerators": []}, "GPU", Level.WRONG, "CUDA_VISIBLE_DEVICES"),
        ({"accelerators": [], "torch_cuda": None, "driver": None}, "GPU", Level.OK, "none"),
    ],
)
def test_what_is_amiss_is_named_with_what_to_change(changed, subject, level, words):
    (finding,) = [each for each in machine_findings(GOOD._replace(**changed)) if each.subject == subject]
    assert finding.level is level
    assert words in f"{finding.found} {finding.change}"
    assert level is Level.OK or finding.change


def test_this_machine_can_be_read():
    facts = read_machine()
    assert facts.shared_memory_error is None
    assert 0 < facts.free_bytes <= facts.total_bytes
    assert 1 <= facts.num_usable_cores <= facts.num_cores
    assert 0 < facts.clock_call_s < 1
