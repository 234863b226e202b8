"""What control groups grant is read from their files, of either version."""

import pytest

from fkat_data.tools.doctor.machine_facts import cpu_quota, num_free_processes, text_of


def written(folder, own, files):
    """Write the files of control groups, and return where groups are mounted, and the file that names a process's."""
    groups = folder / "own"
    groups.write_text(own)
    for name, text in files.items():
        path = folder / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "mount", groups


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/job/step", {"job/step/cpu.max": "max 100000", "job/cpu.max": "150000 100000"}, 1.5),
        ("0::/job", {"job/cpu.max": "max 100000"}, None),
        ("0::/of/the/host", {"cpu.max": "50000 100000"}, 0.5),
        ("3:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "200000", "cpu/job/cpu.cfs_period_us": "100000"}, 2.0),
        ("3:cpu:/job", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, None),
        ("", {}, None),
    ],
)
def test_the_smallest_quota_counts(tmp_path, own, files, quota):
    assert cpu_quota(*written(tmp_path, own, files)) == quota


@pytest.mark.parametrize(
    ("own", "files", "num_free"),
    [
        ("0::/job", {"job/pids.max": "max", "job/pids.current": "3"}, None),
        ("0::/job", {"job/pids.max": "100", "job/pids.current": "30", "pids.max": "50", "pids.current": "40"}, 10),
        ("8:pids:/job", {"pids/job/pids.max": "64", "pids/job/pids.current": "70"}, 0),
        ("8:cpu:/job", {"pids/job/pids.max": "64", "pids/job/pids.current": "70"}, None),
    ],
)
def test_the_tightest_limit_on_processes_counts(tmp_path, own, files, num_free):
    assert num_free_processes(*written(tmp_path, own, files)) == num_free


def test_a_file_that_is_not_there_says_nothing(tmp_path):
    assert text_of(tmp_path / "none") is None
