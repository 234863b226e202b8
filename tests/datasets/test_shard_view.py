import json
import socket
import subprocess
import sys

import pytest
import torch
from dataset_examples import CountedKeyed, Keyed
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.datasets import BufferSortedDataset, ShardedDataset, ShardIndexingMode
from fkat_data.errors import ConfigurationError, StateMismatchError

COUNTS = st.integers(0, 40)
TOTALS = st.integers(1, 9)
MODES = st.sampled_from(list(ShardIndexingMode))


def views(count, total, mode, is_padded):
    return [ShardedDataset(Keyed(range(count)), total, current, mode, is_padded) for current in range(total)]


@pytest.mark.parametrize(
    ("count", "total", "mode", "is_padded", "expected"),
    [
        (14, 4, "sequential", False, [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10], [3, 7, 11]]),
        (14, 4, "sequential", True, [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 13], [3, 7, 11, 13]]),
        (14, 4, "chunked", False, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]),
        (14, 4, "chunked", True, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 13, 13]]),
        (5, 4, "chunked", False, [[0, 1], [2, 3], [4], []]),  # a last view before the end of which the items end
        (5, 4, "chunked", True, [[0, 1], [2, 3], [4, 4], [4, 4]]),
        (3, 8, "chunked", False, [[0], [1], [2], [], [], [], [], []]),
        (3, 8, "sequential", False, [[0], [1], [2], [], [], [], [], []]),
        (3, 8, "sequential", True, [[0], [1], [2], [2], [2], [2], [2], [2]]),
        (0, 2, "sequential", True, [[], []]),
        (0, 2, "chunked", False, [[], []]),
    ],
)
def test_views_of_small_datasets(count, total, mode, is_padded, expected):
    found = views(count, total, mode, is_padded)
    assert [list(view) for view in found] == expected
    assert [len(view) for view in found] == [len(items) for items in expected]


@given(count=COUNTS, total=TOTALS, mode=MODES)
def test_without_padding_views_are_disjoint_and_complete(count, total, mode):
    found = [list(view) for view in views(count, total, mode, False)]
    assert sorted(item for items in found for item in items) == list(range(count))
    assert max(map(len, found)) <= -(-count // total)
    if mode == "chunked":
        assert [item for items in found for item in items] == list(range(count))


@given(count=COUNTS, total=TOTALS, mode=MODES)
def test_with_padding_views_are_equally_long_and_only_the_last_item_is_repeated(count, total, mode):
    found = [list(view) for view in views(count, total, mode, True)]
    assert {len(items) for items in found} == {-(-count // total)}
    missing = total * -(-count // total) - count
    assert sorted(item for items in found for item in items) == sorted([*range(count), *[count - 1] * missing])


@given(count=st.integers(1, 40), total=TOTALS, mode=MODES, is_padded=st.booleans(), data=st.data())
def test_indices_are_those_of_a_list(count, total, mode, is_padded, data):
    view = views(count, total, mode, is_padded)[data.draw(st.integers(0, total - 1))]
    items = list(view)
    assert [view[index] for index in range(-len(items), 0)] == items
    chosen = data.draw(st.lists(st.sampled_from(range(-len(items), len(items))), max_size=6)) if items else []
    assert view.__getitems__(chosen) == [items[index] for index in chosen]
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            view[index]


@pytest.mark.parametrize("mode", list(ShardIndexingMode))
def test_the_state_passes_through_and_is_plain(mode):
    base, other = CountedKeyed(range(9), 4), CountedKeyed(range(9))
    state = json.loads(json.dumps(ShardedDataset(base, 3, 1, mode, True).state_dict()))
    ShardedDataset(other, 3, 1, mode, True).load_state_dict(state)
    assert other.visits == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 0),
        ("total_shards", 4),
        ("current_shard", 0),
        ("indexing_mode", "chunked"),
        ("pad_to_equal_size_across_shards", False),
        ("pad_to_equal_size_across_shards", 1),
        ("base_dataset", {}),
    ],
)
def test_another_views_state_is_refused(field, value):
    view = ShardedDataset(Keyed(range(9)), 3, 1, "sequential", True)
    with pytest.raises(StateMismatchError, match=f"^state field '{field}'"):
        view.load_state_dict(view.state_dict() | {field: value})


def test_the_epoch_passes_through():
    base = BufferSortedDataset(Keyed(range(9)), 9, 2, 0)
    ShardedDataset(base, 3, 1, "sequential", True).set_epoch(5)
    assert base.state_dict()["epoch"] == 5
    ShardedDataset(Keyed([]), 3, 1, "sequential", True).set_epoch(5)


@pytest.mark.parametrize(
    ("argument", "arguments"),
    [
        ("dataset", (iter([1]), 2, 0, "chunked", True)),
        ("total_shards", ([1], 0, 0, "chunked", True)),
        ("current_shard", ([1], 2, 2, "chunked", True)),
        ("current_shard", ([1], 2, -1, "chunked", True)),
        ("indexing_mode", ([1], 2, 0, "round_robin", True)),
        ("pad_to_equal_size_across_shards", ([1], 2, 0, "chunked", "yes")),
    ],
)
def test_arguments_that_cannot_work_are_named(argument, arguments):
    with pytest.raises(ConfigurationError, match=f"^{argument} = "):
        ShardedDataset(*arguments)


MESH = """
import json, sys
import torch
from torch.distributed.device_mesh import init_device_mesh
from fkat_data.datasets import ShardedDataset
from fkat_data.errors import ConfigurationError

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
found = [list(ShardedDataset.from_mesh(range(5), mesh, **options)) for options in (
    {}, {"dim": "tp"}, {"indexing_mode": "chunked", "pad_to_equal_size_across_shards": False})]
try:
    ShardedDataset.from_mesh(range(5), mesh, "pp")
except ConfigurationError as error:
    found.append(str(error))
with open(f"{sys.argv[1]}/{torch.distributed.get_rank()}", "w") as file:
    json.dump(found, file)
torch.distributed.destroy_process_group()
"""


@pytest.mark.usefixtures("processes")
def test_a_device_mesh_says_which_view_it_is(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = f"import sys; sys.path[:0] = {sys.path!r}\n{MESH}"
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "4", "PATH": ""}
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env={**environment, "RANK": str(rank)})
        for rank in range(4)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0] * 4
    found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(4)]
    assert [each[0] for each in found] == [[0, 2, 4], [0, 2, 4], [1, 3, 4], [1, 3, 4]]
    assert [each[1] for each in found] == [[0, 2, 4], [1, 3, 4]] * 2
    assert [each[2] for each in found] == [[0, 1, 2]] * 2 + [[3, 4]] * 2
    assert all("dim = 'pp'" in each[3] and "'dp', 'tp'" in each[3] for each in found)


def test_what_is_no_mesh_is_refused():
    with pytest.raises(ConfigurationError, match=r"^device_mesh = "):
        ShardedDataset.from_mesh([1], torch.zeros(2))
