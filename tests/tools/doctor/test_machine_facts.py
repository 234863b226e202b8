"""What control groups grant is read from their files, of either version."""

import pytest

from fkat_data.tools.doctor import machine_facts


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
    groups = tmp_path / "own"
    groups.write_text(own)
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert machine_facts._cpu_quota(tmp_path / "mount", groups) == quota


def test_a_file_that_is_not_there_says_nothing(tmp_path):
    assert machine_facts._text(tmp_path / "none") is None
    assert machine_facts._free_bytes(tmp_path / "none") is None
