"""Sparse tensors and storages in a pickle stream, where torch's own reductions do not do.

torch rebuilds a sparse tensor by a function that appends each to a list, for the next ``torch.load`` to validate. A
program that only unpickles would keep every sparse tensor of its run. An ``UntypedStorage`` cannot be unpickled at all.
"""

from typing import Any, cast

import torch


def reduce_of_torch(value: Any) -> Any:
    """Return what a pickler's ``reducer_override`` returns: the reduction of a sparse tensor or a storage on the CPU.

    It is NotImplemented for anything else.
    """
    if type(value) is torch.UntypedStorage and value.device.type == "cpu":
        # As a tensor, it shares memory with those that lie in it.
        return _storage, (torch.empty(0, dtype=torch.uint8, device="cpu").set_(value),)
    if type(value) is not torch.Tensor or value.layout is torch.strided or value.is_nested:
        return NotImplemented
    reduced: tuple[Any, ...] = cast("Any", value.__reduce_ex__(5))
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


def _storage(content: torch.Tensor) -> torch.UntypedStorage:
    storage = content.untyped_storage()
    return storage if storage.nbytes() == content.nbytes else content.clone().untyped_storage()
