"""What is collated into a segment is what torch's default collate returns, to the last stride and error."""

import collections
import ctypes
import enum
import re
import sys
import typing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import Dataset, default_collate

from fkat_data import DataLoader
from fkat_data.datasets import Pack, PackedDataset
from fkat_data.transport.codec import ALIGNMENT, decode, encode, lies_at
from fkat_data.worker.collate import SegmentCollate


class Pair(typing.NamedTuple):
    left: typing.Any
    right: typing.Any


class Single(typing.NamedTuple):
    only: typing.Any


class OwnTensor(torch.Tensor):
    pass


class OwnDict(dict):
    pass


class Color(enum.IntEnum):
    RED = 1


class Memory:
    """What a server gives: one piece of memory at a time, of the size that was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, size_bytes):
        self.asked.append(size_bytes)
        self.array = np.full(size_bytes + ALIGNMENT, 0xAA, dtype=np.uint8)
        start = -self.array.ctypes.data % ALIGNMENT
        self.address = self.array.ctypes.data + start
        return memoryview(self.array)[start : start + size_bytes]


def outcome(function, batch):
    try:
        return function(batch)
    except Exception as error:  # noqa: BLE001
        return error


def bytes_of(tensor):
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    return dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""


def assert_same(ours, torchs):
    assert type(ours) is type(torchs)
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.stride()) == (torchs.dtype, torchs.shape, torchs.stride())
        assert (ours.is_conj(), ours.is_neg(), ours.requires_grad) == (
            torchs.is_conj(),
            torchs.is_neg(),
            torchs.requires_grad,
        )
        assert bytes_of(ours) == bytes_of(torchs)
    elif isinstance(ours, dict):
        assert list(ours) == list(torchs)
        for key in ours:
            assert_same(ours[key], torchs[key])
    elif isinstance(ours, (list, tuple, collections.deque)):
        assert len(ours) == len(torchs)
        for mine, theirs in zip(ours, torchs, strict=True):
            assert_same(mine, theirs)
    elif isinstance(ours, Exception):
        assert str(ours) == str(torchs)
    else:
        assert ours == torchs


def check(batch):
    """Compare with torch, in a segment and in new memory, and what arrives; return whether a segment was used."""
    memory = Memory()
    ours = outcome(SegmentCollate(memory, 0), batch)
    torchs = outcome(default_collate, batch)
    assert_same(ours, torchs)
    assert_same(outcome(SegmentCollate(memory, 1 << 40), batch), torchs)
    assert len(memory.asked) <= 1
    if isinstance(ours, Exception) or not memory.asked:
        return False
    encoded = outcome(encode, ours)
    if isinstance(encoded, Exception):
        assert "detach()" in str(encoded)  # of samples that require grad, no graph leaves a worker
        return False
    if lies_at(encoded.parts, memory.address):
        assert encoded.size_bytes <= memory.asked[0]
        data = ctypes.string_at(memory.address, encoded.size_bytes)
        sizes = tuple(np.frombuffer(encoded.layout, dtype=np.int64).tolist())
        assert_same(decode(encoded.envelope, sizes, bytearray(data), 0), decode_of(torchs))
        return True
    return False


def decode_of(value):
    """What the trainer gets of a microbatch that lies in fresh memory."""
    encoded = encode(value)
    memory = bytearray(encoded.size_bytes)
    address = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory)) if memory else 0
    offset = 0
    for part in encoded.parts:
        ctypes.memmove(address + offset, part.address, part.size_bytes)
        offset += -(-part.size_bytes // ALIGNMENT) * ALIGNMENT
    return decode(encoded.envelope, tuple(np.frombuffer(encoded.layout, dtype=np.int64).tolist()), memory, 0)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.uint16, torch.int8]


LAYOUTS = {
    "usual": lambda tensor: tensor,
    "reversed": lambda tensor: tensor.permute(tuple(reversed(range(tensor.dim())))),
    "channels last": lambda tensor: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor,
    "channels last 3d": lambda tensor: tensor.to(memory_format=torch.channels_last_3d) if tensor.dim() == 5 else tensor,
    "with gaps": lambda tensor: torch.cat([tensor, tensor])[::2] if tensor.dim() else tensor,
    "conjugated": lambda tensor: tensor.conj(),
    "negated": lambda tensor: tensor.conj().imag if tensor.is_complex() else tensor,
    "expanded": lambda tensor: tensor.expand(2, *tensor.shape),
}


def tensor_of(dtype, shape, seed, layout):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randint(0, 2 if dtype is torch.bool else 100, shape, generator=generator).to(dtype)
    return LAYOUTS[layout](tensor)


def batches(draw, num_samples, depth=0):
    """Samples that mostly fit together, and sometimes do not."""
    kind = draw(st.sampled_from(["tensor"] * 3 + ["array", "number", "text"] + ["container"] * (2 if depth < 2 else 0)))
    odd = draw(st.integers(0, 12)) == 0
    if kind == "tensor":
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.integers(0, 3), max_size=5).map(tuple))
        layouts = draw(st.lists(st.sampled_from(list(LAYOUTS)), min_size=1, max_size=2))
        made = [tensor_of(dtype, shape, index, layouts[index % len(layouts)]) for index in range(num_samples)]
        if odd:
            made[-1] = draw(
                st.sampled_from(
                    [
                        made[-1].to(torch.float64),
                        torch.zeros(7),
                        made[-1].as_subclass(OwnTensor),
                        torch.zeros(shape, requires_grad=True),
                        torch.zeros(shape).to_sparse() if shape else 3,
                        made[-1].tolist(),
                        None,
                    ]
                )
            )
    elif kind == "array":
        dtype = draw(
            st.one_of(hnp.floating_dtypes(endianness="?"), hnp.integer_dtypes(), st.sampled_from(["U3", "O", "?"]))
        )
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
        made = [np.full(shape, 1).astype(dtype) for _ in range(num_samples)]
        if odd:
            made[-1] = draw(st.sampled_from([np.ones(5), torch.ones(shape), 1, made[-1].tolist()]))
        elif draw(st.booleans()):
            made = [array[::-1] if array.ndim else array for array in made]
    elif kind == "number":
        number = draw(st.sampled_from([1, 2.5, True, np.float32(1), np.float64(2), np.int16(3), np.bool_(True), 2**62]))
        made = [number] * num_samples
        if odd:
            made[-1] = draw(st.sampled_from([0.5, 2**70, "a", None, Color.RED, torch.tensor(1)]))
    elif kind == "text":
        made = draw(st.lists(st.text(max_size=3), min_size=num_samples, max_size=num_samples))
        if odd:
            made[0] = draw(st.sampled_from([b"abc", 5, None, np.str_("a"), "x" * 9000]))
    else:
        return container_of(draw, num_samples, depth, is_odd=odd)
    return made


def container_of(draw, num_samples, depth, *, is_odd):
    count = draw(st.integers(0, 3))
    columns = [batches(draw, num_samples, depth + 1) for _ in range(count)]
    rows = [[column[index] for column in columns] for index in range(num_samples)]
    kind = draw(st.sampled_from(["dict", "list", "tuple", "namedtuple", "other"]))
    if kind == "dict":
        made = [{f"k{place}": value for place, value in enumerate(row)} for row in rows]
        if is_odd:
            made[-1] = draw(st.sampled_from([{}, OwnDict(made[-1]), {**made[-1], "more": 1}, None]))
    elif kind == "namedtuple":
        made = [Pair(*(row * 2)[:2]) if count else Single(1) for row in rows]
        if is_odd:
            made[-1] = tuple(made[-1])
    elif kind == "other":
        other = draw(st.sampled_from([collections.OrderedDict, collections.deque, OwnDict]))
        made = [other(enumerate(row)) for row in rows]
    else:
        made = [(list if kind == "list" else tuple)(row) for row in rows]
        if is_odd:
            made[-1] = draw(st.sampled_from([made[-1] + type(made[-1])([1]), tuple(made[-1]), 5]))
    return made


@given(data=st.data())
@settings(max_examples=300, deadline=None)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_microbatch_is_what_torchs_default_collate_makes_of_the_samples(data):
    check(batches(data.draw, data.draw(st.integers(1, 4))))


@pytest.mark.parametrize(
    "sample",
    [
        torch.ones(3),
        {"image": torch.ones(3, 4, 5), "label": 3, "name": "a", "weight": 0.5},
        (torch.ones(3, 4, 5).permute(2, 0, 1), np.ones((2, 2), dtype=np.float32)),
        [np.float32(3), [torch.tensor(1), {"deep": Pair(np.int64(1), torch.zeros(2))}]],
        Pair(torch.ones(2, 3, 4, 5), torch.empty(0)),
        {"flag": True, "tokens": np.arange(10, dtype=np.uint16)},
        {"text": "a" * 10_000, "image": torch.ones(10)},
        [torch.ones(2)] * 200,
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_what_is_usual_lies_where_it_will_be_sent_from(sample):
    assert check([sample] * 3)


def test_the_segment_has_room_for_a_long_envelope():
    memory = Memory()
    collated = SegmentCollate(memory, 0)([{"text": "ä" * 10_000, "image": torch.ones(10)}] * 3)
    encoded = encode(collated)
    assert len(encoded.envelope) > 16384
    assert memory.asked[0] >= encoded.size_bytes + len(encoded.envelope)


def test_a_small_microbatch_takes_no_segment():
    memory = Memory()
    collate = SegmentCollate(memory, 2048)
    collate([torch.ones(32, dtype=torch.int64)] * 8)
    assert memory.asked == []
    collate([torch.ones(33, dtype=torch.int64)] * 8)
    assert memory.asked == [2112]


def test_a_function_that_the_user_registered_with_torch_is_used(monkeypatch):
    functions = sys.modules[default_collate.__module__].default_collate_fn_map
    memory = Memory()
    monkeypatch.setitem(functions, torch.Tensor, lambda batch, *, collate_fn_map: "mine")
    assert SegmentCollate(memory, 0)([torch.ones(5)] * 2) == "mine"
    monkeypatch.undo()
    monkeypatch.setitem(functions, Pair, lambda batch, *, collate_fn_map: "pairs")
    assert SegmentCollate(memory, 0)([Pair(torch.ones(5), 1)] * 2) == "pairs"
    assert memory.asked == []


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_arrays_over_files_and_those_that_cannot_be_written_are_stacked(tmp_path):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype=np.uint16, mode="r")
    assert check([tokens[:50], tokens[50:]])


def documents():
    return [{"tokens": torch.arange(length)} for length in (3, 5, 8, 8, 1, 7, 4, 4)]


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def ragged(first, second):
    """Samples that do not stack, the larger one first or last: a worker's torch says another thing of each."""
    return {
        "tensors": [torch.zeros(first), torch.zeros(second)],
        "views": [torch.zeros(9)[:first], torch.zeros(9)[:second]],
        "arrays": [np.zeros(first), np.zeros(second)],
        "dictionaries": [{"a": {"b": torch.zeros(first)}}, {"a": {"b": torch.zeros(second)}}],
        "tuples": [(1, torch.zeros(first)), (1, torch.zeros(second))],
        "lists of arrays": [[np.zeros((2, first))], [np.zeros((2, second))]],
        "large": [torch.zeros(10_000 * first), torch.zeros(10_000 * second)],
        "subclasses": [torch.nn.Parameter(torch.zeros(size), requires_grad=False) for size in (first, second)],
    }


def error_of(loader):
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    return str(caught.value), getattr(caught.value, "__notes__", [])


@pytest.fixture
def in_torchs_worker(monkeypatch):
    """Let torch take this process for a worker: it then collates into shared memory."""
    monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", object())


@pytest.mark.parametrize("sizes", [(3, 4), (4, 3), (8, 1), (0, 3)])
@pytest.mark.parametrize("kind", ragged(1, 2))
def test_samples_that_do_not_stack_are_an_error_as_in_the_programs_process(kind, sizes, in_torchs_worker):
    samples = ragged(*sizes)[kind]
    with pytest.raises(RuntimeError) as caught:
        SegmentCollate(Memory(), 0)(samples)
    assert re.match(
        r"stack expects each tensor to be equal size, but got \[.*\] at entry 0 and \[.*\] at entry 1",
        str(caught.value),
    )
    assert [note for note in caught.value.__notes__ if "shapes" in note]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.with_processes)])
@pytest.mark.parametrize("options", [{"window_fn": Pack(8), "window_size": 4}, {}])
def test_packs_that_torchs_collate_gets_are_an_error_that_names_the_one_for_them(num_workers, options, request):
    if num_workers:
        request.getfixturevalue("processes")
    rows = documents()
    dataset = Rows(rows)
    if not options:
        dataset = PackedDataset(dataset, 8, lengths=[len(row["tokens"]) for row in rows])
    with DataLoader(dataset, batch_size=3 if options else 5, num_workers=num_workers, **options) as loader:
        text, notes = error_of(loader)
    assert text.startswith("stack expects each tensor to be equal size")
    assert sum("collate_fn=fkat_data.datasets.collate_packed" in note for note in notes) == 1
    assert not any("PaddingCollate" in note for note in notes)
