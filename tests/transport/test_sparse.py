import warnings
import weakref

import pytest
import torch

from fkat_data.transport import codec
from fkat_data.transport.sparse import reduce_sparse

LAYOUTS = ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"]


def sparse(name):
    layout = getattr(torch, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some layouts a beta
        return torch.eye(4).to_sparse(layout=layout, blocksize=(2, 2) if name.endswith(("bsr", "bsc")) else None)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("note", [None, "an attribute"])
def test_nothing_keeps_a_sparse_tensor_that_has_arrived(name, note):
    given = sparse(name)
    if note:
        given.note = note
    for travel in (lambda value: codec.copied(value)[0], lambda value: codec.loads(codec.dumps(value))):
        arrived = travel([given])[0]
        assert (arrived.layout, getattr(arrived, "note", None)) == (given.layout, note)
        assert torch.equal(arrived.to_dense(), given.to_dense())
        kept = weakref.ref(arrived)
        del arrived
        assert kept() is None


def test_a_sum_that_is_not_made_yet_arrives_as_it_is():
    given = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,), check_invariants=False)
    arrived, _ = codec.copied(given)
    assert not arrived.is_coalesced()
    assert arrived._values().tolist() == [2.0, 3.0]


def test_other_tensors_are_left_to_torch():
    nested = torch.nested.nested_tensor([torch.arange(2.0)], layout=torch.jagged)
    for tensor in (torch.ones(2), torch.empty(2, device="meta"), nested):
        assert reduce_sparse(tensor) is NotImplemented
