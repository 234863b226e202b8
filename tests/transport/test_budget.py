import psutil
import pytest

from fkat_data.transport.budget import available_bytes, default_limit_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "1073741824\n", "memory.current": "1000000000\n"}, GIB - 1_000_000_000),
        # used up
        ({"memory.max": "100", "memory.current": "200"}, 0),
        # no limit
        ({"memory.max": "max\n", "memory.current": "5"}, None),
        # version 1
        ({"memory/memory.limit_in_bytes": "4096", "memory/memory.usage_in_bytes": "96"}, 4000),
        # nothing mounted, or not readable
        ({}, None),
        ({"memory.max": "garbage", "memory.current": "5"}, None),
        # a limit beyond the machine is none
        ({"memory.max": str(2**62), "memory.current": "0"}, None),
    ],
)
def test_the_control_groups_limit_counts_where_it_is_less_than_the_machines(tmp_path, files, left):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    available = available_bytes(tmp_path)
    if left is None:
        assert available == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    else:
        assert available == left


def test_the_default_limit_is_modest():
    assert 64 << 20 <= default_limit_bytes() <= GIB
