import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.transport.memory_limit import available_bytes, default_limit, group_bytes, left_on_machine

GIB, MIB = 1 << 30, 1 << 20
VERSION_1 = "9:name=systemd:/\n4:memory:{path}\n0::/\n"
VERSION_2 = "0::{path}\n"
LIMIT_1, USAGE_1 = "memory.limit_in_bytes", "memory.usage_in_bytes"


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        # version 2, in a namespace of its own, as in most containers
        (VERSION_2.format(path="/"), {"memory.max": f"{GIB}\n", "memory.current": "1000000000\n"}, 0),
        # a group within the mount, as of a batch system's job; the one around it is tighter
        (
            VERSION_2.format(path="/job/step"),
            {"job/step/memory.max": "max", "job/memory.max": "5000", "job/memory.current": "1000"},
            3500,
        ),
        (
            VERSION_2.format(path="/job/step"),
            {
                "job/step/memory.max": "3000",
                "job/step/memory.current": "1000",
                "job/memory.max": "5000",
                "job/memory.current": "1000",
            },
            1700,
        ),
        # the host's path, in a container that sees its own group alone
        (VERSION_2.format(path="/kubepods/pod1"), {"memory.max": "100", "memory.current": "40"}, 50),
        # files that are cached are given up where memory is needed; shared memory is not among them
        (
            VERSION_2.format(path="/"),
            {
                "memory.max": "1000",
                "memory.current": "990",
                "memory.stat": "anon 100\nfile 890\nshmem 190\nactive_file 300\ninactive_file 400\n",
            },
            610,
        ),
        # slowed down from there on
        (
            VERSION_2.format(path="/"),
            {"memory.max": "max", "memory.high": "1000", "memory.current": "100"},
            800,
        ),
        # the machine shows a container's limit as its own memory
        (
            VERSION_2.format(path="/"),
            {"memory.max": str(psutil.virtual_memory().total), "memory.current": str(psutil.virtual_memory().total)},
            0,
        ),
        # no limit
        (VERSION_2.format(path="/"), {"memory.max": "max\n", "memory.current": "5"}, None),
        # version 1
        (
            VERSION_1.format(path="/slurm/uid_1/job_2"),
            {
                f"memory/slurm/uid_1/job_2/{LIMIT_1}": "4096",
                f"memory/slurm/uid_1/job_2/{USAGE_1}": "3096",
                "memory/slurm/uid_1/job_2/memory.stat": "cache 9\ntotal_active_file 100\ntotal_inactive_file 50\n",
                f"memory/{LIMIT_1}": str(2**63 - 4096),
                f"memory/{USAGE_1}": "5000",
            },
            740,
        ),
        # version 2 beside version 1
        (VERSION_2.format(path="/a"), {"unified/a/memory.max": "7", "unified/a/memory.current": "3"}, 3),
        # nothing mounted, or not readable
        (VERSION_2.format(path="/"), {}, None),
        ("", {"memory.max": "7", "memory.current": "3"}, None),
        # a limit beyond the machine is none
        (VERSION_2.format(path="/"), {"memory.max": str(2**62), "memory.current": "0"}, None),
    ],
)
def test_nine_tenths_of_the_tightest_control_group_count(tmp_path, own, files, left):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    assert group_bytes(tmp_path / "mount", tmp_path / "own") == left
    available = available_bytes(tmp_path / "mount", tmp_path / "own")
    if left is None:
        assert available == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    else:
        assert available == left


@pytest.mark.parametrize(
    ("available", "limit", "prefetch"),
    [
        (100 * GIB, 50 * GIB, GIB),
        (21 * GIB, 21 * GIB // 2, GIB),
        (4 * GIB, 2 * GIB, GIB // 2),
        (256 * MIB, 128 * MIB, 64 * MIB),
        (100 * MIB, 50 * MIB, 50 * MIB),
        (MIB, MIB, MIB),
        (0, MIB, MIB),
    ],
)
def test_the_default_is_half_of_what_is_free_and_prefetching_takes_little_of_it(available, limit, prefetch):
    assert default_limit(available=available) == (limit, prefetch)


@given(
    st.integers(0, 1 << 42),
    st.integers(1, 16),
    st.lists(st.integers(1, 256), min_size=1, max_size=6),
    st.integers(0, 40),
)
def test_loaders_of_all_ranks_together_take_no_more_than_there_is(available, num_ranks, loaders, used_percent):
    """Each loader of a rank begins when the ones before have taken what they may; all ranks at the same moment."""
    left = available * (100 - used_percent) // 100
    for num_workers in loaders:
        limit = default_limit(num_workers, num_ranks, left)
        assert MIB * num_workers <= limit.prefetch_bytes <= max(limit.limit_bytes, MIB * num_workers)
        worker = limit.of_worker(num_workers)
        assert worker.limit_bytes * num_workers <= limit.limit_bytes
        taken = num_ranks * limit.limit_bytes
        assert taken <= max(left // 2, num_ranks * num_workers * MIB)
        left = max(0, left - taken)


@given(st.integers(1 << 24, 1 << 42), st.integers(1, 64), st.integers(1, 16))
def test_the_default_grows_with_the_machine_and_shrinks_with_its_ranks(available, num_workers, num_ranks):
    limit = default_limit(num_workers, num_ranks, available)
    assert limit.limit_bytes <= default_limit(num_workers, num_ranks, 2 * available).limit_bytes
    assert limit.limit_bytes >= default_limit(num_workers, num_ranks + 1, available).limit_bytes
    assert limit.limit_bytes <= default_limit(num_workers + 1, num_ranks, available).limit_bytes


def test_the_default_is_of_this_machine():
    total = psutil.virtual_memory().total
    assert default_limit().limit_bytes <= total // 2
    assert left_on_machine() < total
