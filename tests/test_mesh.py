"""Which ranks of a device mesh get the same data, against plain lists."""

import copy
import itertools
import math
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from fkat_data import ConfigurationError
from fkat_data.runtime.mesh import mesh_ranks

NAMES = ("pp", "dp_replicate", "dp_shard", "tp")


@contextmanager
def job(rank, num_ranks):
    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def model_of(grid, dims, rank):
    """Return the data-parallel ranks' groups in order, and which of them a rank is in: by walking every coordinate."""
    groups = {}
    for place in itertools.product(*map(range, grid.shape)):
        key = tuple(place[NAMES.index(name)] for name in dims)
        groups.setdefault(key, []).append(int(grid[place]))
    in_order = [sorted(groups[key]) for key in sorted(groups)]
    return in_order, next(index for index, group in enumerate(in_order) if rank in group)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    dims=st.sets(st.sampled_from(NAMES)),
    shuffle=st.randoms(),
    form=st.sampled_from(["whole", "slice", "flattened"]),
    data=st.data(),
)
def test_each_rank_gets_what_its_place_along_the_dimensions_says(shape, dims, shuffle, form, data):
    dims, num_ranks = tuple(name for name in NAMES if name in dims), math.prod(shape)
    ranks = list(range(num_ranks))
    shuffle.shuffle(ranks)
    grid = torch.tensor(ranks).reshape(shape)
    rank = data.draw(st.integers(0, num_ranks - 1))
    with job(rank, num_ranks):
        mesh, asked = DeviceMesh("cpu", grid, mesh_dim_names=NAMES), dims
        if form == "slice" and dims:
            mesh = mesh[dims]
        elif form == "flattened" and len(dims) > 1:
            mesh, asked = mesh[dims]._flatten("all_of_them"), "all_of_them"
        found = mesh_ranks(mesh, asked if isinstance(asked, str) else asked[::-1])
        groups, own = model_of(grid, dims, rank)
        assert (found.num_dp_ranks, found.dp_rank) == (len(groups), own)
        assert list(found.replicas) == groups[own]
        assert list(found.firsts) == [group[0] for group in groups]
        assert found.one_of_each(range(num_ranks)) == list(found.firsts)


def test_dimensions_that_begin_with_dp_are_the_default():
    with job(5, 8):
        mesh = DeviceMesh("cpu", torch.arange(8).reshape(1, 2, 2, 2), mesh_dim_names=NAMES)
        assert mesh_ranks(mesh, None) == mesh_ranks(mesh, ("dp_replicate", "dp_shard"))
        assert mesh_ranks(copy.deepcopy(mesh), None).dp_rank == 2


@pytest.mark.parametrize("dims", ["cp", ("tp", "cp"), 3, (1, 2)])
def test_dimensions_that_the_mesh_does_not_have_are_refused(dims):
    with job(0, 8):
        mesh = DeviceMesh("cpu", torch.arange(8).reshape(1, 2, 2, 2), mesh_dim_names=NAMES)
        with pytest.raises(ConfigurationError) as raised:
            mesh_ranks(mesh, dims)
        assert raised.value.argument == "dp_dims"


def test_a_mesh_of_some_ranks_and_what_is_no_mesh_are_refused():
    assert mesh_ranks(None, None) is None
    with pytest.raises(ConfigurationError, match="without a mesh"):
        mesh_ranks(None, "dp")
    with pytest.raises(ConfigurationError, match="mesh_dim_names"):
        mesh_ranks(object(), "dp")
    with job(1, 4):
        with pytest.raises(ConfigurationError, match="all 4 ranks"):
            mesh_ranks(DeviceMesh("cpu", torch.arange(2), mesh_dim_names=("dp",)), "dp")
        with pytest.raises(ConfigurationError, match="mesh_dim_names"):
            mesh_ranks(DeviceMesh("cpu", torch.arange(4)), "dp")
        with pytest.raises(ConfigurationError, match="names of the dimensions"):
            mesh_ranks(DeviceMesh("cpu", torch.arange(4), mesh_dim_names=("tp",)), None)
