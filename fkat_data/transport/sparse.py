"""Sparse tensors in a pickle stream, rebuilt so that nothing keeps them.

torch's own reduction rebuilds them by a function that appends each to a list, for the next ``torch.load`` to validate.
A program that only unpickles would keep every sparse tensor of its run.
"""

from typing import Any, cast

import torch

__all__ = ["reduce_sparse"]


def reduce_sparse(tensor: torch.Tensor) -> Any:
    """Return what a pickler's ``reducer_override`` returns: a sparse tensor's reduction, NotImplemented for others."""
    if tensor.layout is torch.strided or tensor.is_nested:
        return NotImplemented
    reduced: tuple[Any, ...] = cast("Any", tensor.__reduce_ex__(5))
    function, arguments = reduced[:2]
    if function is _TORCH_REBUILDS:
        return _rebuild, arguments
    if arguments[0] is _TORCH_REBUILDS:  # the tensor has attributes
        return function, (_rebuild, *arguments[1:])
    return NotImplemented


# Made in this way it brings no warning, which torch 2.12 gives for one of indices and values.
_EMPTY: torch.Tensor = torch.empty(0, layout=torch.sparse_coo, device="cpu")
_TORCH_REBUILDS: Any = cast("Any", _EMPTY.__reduce_ex__(5))[0]


def _rebuild(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    if layout is torch.sparse_coo:
        indices, values, size, is_coalesced = data
        return torch.sparse_coo_tensor(indices, values, size, check_invariants=False, is_coalesced=is_coalesced)
    return torch.sparse_compressed_tensor(*data, layout=layout, check_invariants=False)
