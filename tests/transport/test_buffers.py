"""Large arrays and tensors of a shipment: copied once, mapped where a file shows them, shared where they are shared."""

import mmap
import multiprocessing
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.buffers import BufferTable, load_with_buffers
from fkat_data.transport.definitions import digest_of_shipment, write_shipment

#: Enough to travel beside the pickle, and a file's pages.
NUM_LARGE = 40_000


class Trip:
    """What a worker has of a value, and how it came there."""

    def __init__(self, value):
        descriptor, places = anonymous_file(), BufferTable()
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                write_shipment(value, file, places)
            shipment = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
            self.size_bytes = len(shipment)
            self.value = load_with_buffers(shipment)
        finally:
            os.close(descriptor)
            places.close()


def num_open():
    return len([*Path("/proc/self/fd").iterdir()])


DTYPES = ["float64", "float32", "int16", "uint8", "bool", "complex64", "datetime64[s]", "U7"]


@st.composite
def arrays(draw):
    """An array of any layout, some large enough to travel beside the pickle."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (0, 3), (7,), (5, 4), (NUM_LARGE,), (300, 400)]))
    array = np.arange(int(np.prod(shape))).reshape(shape)
    array = array.astype(dtype) if dtype.kind != "M" else array.astype(np.int64).view("M8[s]")
    if draw(st.booleans()):
        array = np.asfortranarray(array)
    if array.ndim and draw(st.booleans()):
        array = array[:: draw(st.sampled_from([2, -1]))]
    array.flags.writeable = draw(st.booleans()) and array.flags.writeable
    return array


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from([torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64]))
    shape = draw(st.sampled_from([(), (0, 3), (7,), (NUM_LARGE,), (300, 400)]))
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    if tensor.ndim == 2 and draw(st.booleans()):
        tensor = tensor.T
    if tensor.ndim and draw(st.booleans()):
        tensor = tensor[len(tensor) // 3 :: 2]
    return tensor.requires_grad_() if dtype.is_floating_point and draw(st.booleans()) else tensor


@settings(max_examples=60, deadline=None)
@given(st.lists(arrays() | tensors(), max_size=4))
def test_any_array_and_tensor_arrives_as_it_was_sent_and_is_its_owners_own(sent):
    arrived = Trip(sent).value
    for before, after in zip(sent, arrived, strict=True):
        assert type(after) is type(before)
        assert after.dtype == before.dtype
        assert after.shape == before.shape
        if isinstance(before, torch.Tensor):
            assert torch.equal(after, before)
            assert (after.stride(), after.requires_grad) == (before.stride(), before.requires_grad)
            kept, changed = before.detach().clone(), after.detach()
        else:
            assert np.array_equal(after, before)
            if before.dtype.kind != "M" and before.flags.forc:  # others are no buffers, and numpy forgets it
                assert after.flags.writeable == before.flags.writeable
            kept, changed = before.copy(), after
        if isinstance(changed, torch.Tensor) or changed.flags.writeable:
            changed[...] = changed.reshape(-1)[:1][0] if changed.shape and 0 not in changed.shape else changed
        assert np.array_equal(kept, before) if isinstance(before, np.ndarray) else torch.equal(kept, before.detach())


def test_tensors_that_share_memory_share_it_in_the_worker():
    whole = torch.zeros(NUM_LARGE)
    small = torch.zeros(4)
    whole_there, part_there, small_there, end_there = Trip([whole, whole[10:20], small, small[3:]]).value
    part_there.fill_(1)
    end_there.fill_(2)
    assert whole_there.sum() == 10
    assert small_there.tolist() == [0, 0, 0, 2]
    assert not whole.any()
    assert small_there.resize_(NUM_LARGE).shape == (NUM_LARGE,)


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers"
    np.arange(NUM_LARGE).tofile(path)
    return path


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("part", [slice(None), slice(5, None), slice(5, -100)])
def test_a_mapped_file_is_mapped_again_and_not_copied(numbers, mode, part):
    mapped = np.memmap(numbers, np.int64, mode)[part]
    trip = Trip({"array": mapped, "tensor": torch.from_numpy(mapped) if mode == "r+" else None})
    there = trip.value["array"]
    assert trip.size_bytes < NUM_LARGE
    assert type(there) is np.memmap
    assert np.array_equal(there, mapped)
    assert (there.filename, there.mode, there.flags.writeable) == (mapped.filename, mode, mode == "r+")
    if mode == "r+":  # one file
        there[3] = -1
        assert mapped[3] == -1
        assert trip.value["tensor"][3] == -1


def test_a_tensor_of_a_file_that_must_not_be_written_writes_to_its_own_memory(numbers):
    kept = numbers.read_bytes()
    mapped = np.memmap(numbers, np.int64, "r")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says so once a process
        tensor = torch.from_numpy(mapped)
    there = Trip(tensor).value
    there[3] = -1
    assert there[3] == -1
    assert numbers.read_bytes() == kept


@pytest.mark.parametrize("change", ["deleted", "replaced", "made shorter", "written privately"])
def test_a_mapped_file_that_is_not_what_the_program_sees_is_copied(numbers, change):
    mapped = np.memmap(numbers, np.int64, "c" if change == "written privately" else "r+")
    expected = np.arange(NUM_LARGE)
    if change == "deleted":
        numbers.unlink()
    elif change == "replaced":
        other = numbers.with_name("other")
        np.zeros(NUM_LARGE, np.int64).tofile(other)
        other.replace(numbers)
    elif change == "made shorter":
        mapped = mapped[: NUM_LARGE // 2]
        expected = expected[: NUM_LARGE // 2].copy()
        os.truncate(numbers, 8 * (NUM_LARGE // 2))
    else:
        mapped[7] = expected[7] = -1
    assert np.array_equal(Trip(mapped).value, expected)


def shared_tensor():
    return torch.zeros(NUM_LARGE).share_memory_()


def small_shared_tensor():
    return torch.zeros(3).share_memory_()


def array_of_multiprocessing():
    return np.frombuffer(multiprocessing.RawArray("d", NUM_LARGE))


@pytest.mark.parametrize(
    "make", [shared_tensor, small_shared_tensor, array_of_multiprocessing], ids=lambda make: make.__name__
)
def test_what_is_written_to_shared_memory_is_seen_on_both_sides(make):
    shared = make()
    opened = num_open()
    there = Trip(shared).value
    there[1] = 5
    shared[2] = 7
    assert (shared[1], there[2]) == (5, 7)
    assert num_open() <= opened + 1  # of the mapping
    del there
    assert num_open() == opened


@pytest.mark.parametrize("make", [shared_tensor, small_shared_tensor], ids=lambda make: make.__name__)
def test_a_shared_tensor_is_known_for_one_and_to_share_it_again_changes_nothing(make):
    shared = make()
    trip = Trip({"whole": shared, "part": shared[1:], "own": torch.zeros(NUM_LARGE)}).value
    assert trip["whole"].is_shared()
    assert trip["part"].share_memory_().is_shared()
    assert not trip["own"].is_shared()
    trip["part"][0] = 5
    assert (shared[1], trip["whole"][1]) == (5, 5)


def test_shared_memory_that_no_other_process_can_open_is_refused_and_never_copied():
    with pytest.raises(pickle.PicklingError, match="neither a name nor a descriptor"):
        Trip(np.frombuffer(mmap.mmap(-1, NUM_LARGE), np.uint8))


@settings(max_examples=40, deadline=None)
@given(arrays(), st.data())
def test_a_digest_finds_each_change_of_an_array(array, data):
    array = np.array(array)  # to be written
    before = digest_of_shipment({"array": array})
    assert digest_of_shipment({"array": array.copy("K")}) == before
    if array.size and array.dtype.itemsize:
        content = array.reshape(-1).view(np.uint8) if array.flags.c_contiguous else None
        if content is not None:
            content[data.draw(st.integers(0, content.size - 1))] ^= 1
            assert digest_of_shipment({"array": array}) != before


def test_a_digest_tells_mapped_files_by_which_they_are(numbers):
    mapped = np.memmap(numbers, np.int64, "r+")
    before = digest_of_shipment(mapped)
    mapped[5] = -1  # workers see it
    assert digest_of_shipment(mapped) == before
    assert digest_of_shipment(np.memmap(numbers, np.int64, "r+")) == before
    assert digest_of_shipment(mapped[1:]) != before


@pytest.mark.parametrize("make", [shared_tensor, small_shared_tensor], ids=lambda make: make.__name__)
def test_what_workers_write_to_shared_memory_is_no_change_of_the_dataset(make):
    shared = make()
    before = digest_of_shipment({"counts": shared})
    shared[1] = 5
    assert digest_of_shipment({"counts": shared}) == before
    assert digest_of_shipment({"counts": shared.clone()}) != before


class Encode:
    """A ``collate_fn`` of a class that has a model."""

    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.BatchNorm1d(200))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.length = 3

    def __call__(self, samples):
        return samples[: self.length]

    def step(self):
        weight = self.model[0].weight
        with torch.no_grad():
            weight += 1
            self.model[1].running_mean += 1
        self.optimizer.state[weight] = {"exp_avg": torch.ones(3)}
        self.model.eval()


def test_training_a_model_changes_no_digest_of_a_function_that_knows_it():
    encode = Encode()
    before = digest_of_shipment("data", (encode,))
    encode.step()
    assert digest_of_shipment("data", (encode,)) == before
    assert digest_of_shipment(encode) != before  # a dataset's weights are data
    encode.length = 2
    assert digest_of_shipment("data", (encode,)) != before
    encode.length = 3
    encode.model.add_module("more", torch.nn.ReLU())
    assert digest_of_shipment("data", (encode,)) != before
