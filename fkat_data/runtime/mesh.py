"""Which ranks of a device mesh get which data, and which get the same."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.distributed import is_initialized, rank_and_world_size
from fkat_data.runtime.interruption import genuine

_Value = TypeVar("_Value")


class MeshRanks(NamedTuple):
    """What a rank gets by its place in a device mesh.

    Attributes:
        num_dp_ranks: Data-parallel ranks, each of which has a part of the data.
        dp_rank: Whose part this rank gets.
        replicas: The job's ranks that get the same, in order, this one among them.
        firsts: The first of these for each data-parallel rank, in their order.
    """

    num_dp_ranks: int
    dp_rank: int
    replicas: tuple[int, ...]
    firsts: tuple[int, ...]

    @property
    def has_replicas(self) -> bool:
        """Whether another rank gets the same."""
        return len(self.replicas) > 1

    def one_of_each(self, values: Sequence[_Value]) -> list[_Value]:
        """Return the value of each data-parallel rank, from those of all ranks of the job."""
        return [values[rank] for rank in self.firsts]


def mesh_ranks(mesh: Any, dp_dims: str | Sequence[str] | None) -> MeshRanks | None:
    """Return what this rank gets by its place in a device mesh; None without a mesh.

    Args:
        mesh: A ``DeviceMesh``, or a slice of one, which stands for the whole; None: there is none.
        dp_dims: The dimensions along which data differ, those of flattened slices included; None: all that are called
            ``dp``, or begin so.

    Raises:
        ConfigurationError: It is no such mesh, has no such dimension, or does not have all ranks of the job.
    """
    if mesh is None:
        if dp_dims is not None:
            raise ConfigurationError("dp_dims", dp_dims, "None without a mesh")
        return None
    names: Any = getattr(mesh, "mesh_dim_names", None)
    if not names or not is_initialized():
        raise ConfigurationError("mesh", mesh, "a torch DeviceMesh with mesh_dim_names")
    dims = _dims_of(names, dp_dims)
    rank, world_size = rank_and_world_size()
    grid = _grid_of(_root_of(mesh))
    if sorted(grid.flat) != list(range(world_size)):
        raise ConfigurationError("mesh", mesh, f"a mesh of all {world_size} ranks of the job, or a slice of one")
    own = _ranks_along(mesh, names, dims) if dims else [rank]
    places = [np.argwhere(grid == each)[0] for each in own]
    axes = [axis for axis in range(grid.ndim) if len({place[axis] for place in places}) > 1]
    of_each = [_alike(grid, place, axes) for place in places]
    if rank not in own or sum(map(len, of_each)) != world_size:
        raise ConfigurationError("dp_dims", dims, f"dimensions of the mesh, whose ranks form a grid; it has {names}")
    dp_rank = own.index(rank)
    return MeshRanks(len(own), dp_rank, of_each[dp_rank], tuple(ranks[0] for ranks in of_each))


def _dims_of(names: Sequence[str], dp_dims: object) -> tuple[str, ...]:
    if dp_dims is None:
        found = tuple(name for name in names if name.startswith("dp"))
        if found:
            return found
    elif isinstance(dp_dims, str):
        return (dp_dims,)
    else:
        given = tuple(cast("Sequence[object]", dp_dims)) if isinstance(dp_dims, Sequence) else (None,)
        if all(isinstance(each, str) for each in given):
            found = cast("tuple[str, ...]", given)
            return tuple(sorted(found, key=names.index)) if set(found) <= set(names) else found
    raise ConfigurationError(
        "dp_dims", cast("object", dp_dims), f"names of the dimensions along which data differ, of {tuple(names)}"
    )


def _ranks_along(mesh: Any, names: Sequence[str], dims: tuple[str, ...]) -> list[int]:
    """Return the ranks along some dimensions, in order, of which this rank is one."""
    try:
        part = mesh if dims == tuple(names) else mesh[dims[0] if len(dims) == 1 else dims]
    except genuine(KeyError, ValueError, RuntimeError, NotImplementedError) as error:
        expected = f"dimensions of the mesh, of {tuple(names)}, or of its flattened slices"
        raise ConfigurationError("dp_dims", dims, expected) from error
    return [int(each) for each in _grid_of(part).flat]


def _grid_of(mesh: Any) -> "np.ndarray[Any, Any]":
    return np.asarray(mesh.mesh.tolist())


def _root_of(mesh: Any) -> Any:
    """Return the mesh that a mesh is a slice of, or itself; torch has no public name for it."""
    own = getattr(mesh, "_get_root_mesh", None)
    if callable(own):
        return own()
    from torch.distributed import device_mesh  # noqa: PLC0415 - who has a mesh has imported it

    resources: Any = getattr(device_mesh, "_mesh_resources", None)
    of_older = getattr(resources, "get_root_mesh", None) or getattr(resources, "get_parent_mesh", None)
    return (of_older(mesh) if callable(of_older) else None) or mesh


def _alike(grid: "np.ndarray[Any, Any]", place: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that are at a place of the grid along some axes, in order."""
    index = tuple(int(place[axis]) if axis in axes else slice(None) for axis in range(grid.ndim))
    return tuple(sorted(int(each) for each in grid[index].flat))
