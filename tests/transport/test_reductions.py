import warnings
import weakref

import pytest
import torch

from fkat_data.transport import codec

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


def test_a_storage_arrives_with_its_bytes_and_shares_them_with_its_tensors():
    whole = torch.arange(12, dtype=torch.int16)
    given = {"storage": whole.untyped_storage(), "tensor": whole[2:4], "again": whole.untyped_storage()}
    arrived, _ = codec.copied(given)
    assert type(arrived["storage"]) is torch.UntypedStorage
    assert arrived["storage"].tolist() == whole.untyped_storage().tolist()
    assert arrived["again"] is arrived["storage"] is not given["storage"]
    arrived["tensor"][0] = 77
    assert arrived["storage"][4] == 77
    assert whole[2] == 2


def test_a_typed_storage_arrives():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will have only untyped ones
        arrived = codec.copied([torch.arange(5).storage()])[0][0]
        assert (arrived.dtype, arrived.tolist()) == (torch.int64, [0, 1, 2, 3, 4])
