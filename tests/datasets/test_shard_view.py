import json

import pytest
from dataset_examples import Keyed
from hypothesis import example, given
from hypothesis import strategies as st

from fkat_data.datasets import ShardedDataset, ShardIndexingMode

COUNTS = st.integers(0, 40)
TOTALS = st.integers(1, 9)
MODES = st.sampled_from(list(ShardIndexingMode))


def views(count, total, mode, is_padded):
    return [ShardedDataset(Keyed(range(count)), total, current, mode, is_padded) for current in range(total)]


@given(count=COUNTS, total=TOTALS, mode=MODES, is_padded=st.booleans())
@example(count=5, total=4, mode="chunked", is_padded=False)  # the items end before the last view begins
@example(count=3, total=8, mode="sequential", is_padded=True)
@example(count=0, total=2, mode="sequential", is_padded=True)
def test_views_are_every_nth_item_or_chunks_and_padding_repeats_the_last_item(count, total, mode, is_padded):
    items, length = list(range(count)), -(-count // total)
    for current, view in enumerate(views(count, total, mode, is_padded)):
        own = items[current::total] if mode == "sequential" else items[current * length :][:length]
        expected = own + items[-1:] * (length - len(own) if is_padded else 0)
        assert list(view) == expected
        assert len(view) == len(expected)


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


MESH = """
import json
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
print(json.dumps(found))
torch.distributed.destroy_process_group()
"""


def test_a_device_mesh_says_which_view_it_is(processes, prepared, tmp_path):
    (tmp_path / "mesh.py").write_text(MESH)
    ranks = prepared.run_ranks(4, "mesh.py", folder=tmp_path)
    assert not any(rank.returncode for rank in ranks), [rank.stderr for rank in ranks]
    found = [json.loads(rank.stdout.splitlines()[-1]) for rank in ranks]
    assert [each[0] for each in found] == [[0, 2, 4], [0, 2, 4], [1, 3, 4], [1, 3, 4]]
    assert [each[1] for each in found] == [[0, 2, 4], [1, 3, 4]] * 2
    assert [each[2] for each in found] == [[0, 1, 2]] * 2 + [[3, 4]] * 2
    assert all("dim = 'pp'" in each[3] and "'dp', 'tp'" in each[3] for each in found)
