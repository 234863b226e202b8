import collections
import dataclasses
import datetime as dt
import enum
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fkat_data.testing import first_difference
from fkat_data.transport.codec import ALIGNMENT, copied_size, decode, encode, write


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Record:
    name: str
    value: Any


@dataclasses.dataclass(frozen=True)
class FrozenRecord:
    value: Any


class Color(enum.Enum):
    RED = 1


def travel(value, offset=0):
    """Encode, write into memory that is full of something else, forget the original's, decode."""
    encoded = encode(value)
    sizes = [part.size_bytes for part in encoded.parts]
    memory = np.full(copied_size(sizes) + offset + ALIGNMENT, 0xAB, dtype=np.uint8)
    shift = -memory.ctypes.data % ALIGNMENT
    memory = memory[shift:]
    write(encoded.parts, memoryview(memory), memory.ctypes.data, offset)
    packed = np.frombuffer(encoded.layout, dtype=np.int64)
    return decode(encoded.envelope, tuple(packed.tolist()), memory, offset)


def assert_same_tensor(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.layout == theirs.layout
    assert ours.requires_grad == theirs.requires_grad
    assert bits(ours) == bits(theirs)


def bits(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(tensor.untyped_storage())[
        tensor.storage_offset() * tensor.itemsize : (tensor.storage_offset() + tensor.numel()) * tensor.itemsize
    ]


def tensors_can_hold(dtype):
    if str(dtype).startswith(("torch.qint", "torch.quint")):
        return False  # not without a quantiser: see below
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # complex32 says that it is experimental
            torch.empty(2, dtype=dtype).view(torch.uint8)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype) and tensors_can_hold(value)}, key=str
)


def random_tensor(dtype, shape, seed=0):
    # Random bits: every bit pattern must travel, those that are not numbers too.
    generator = torch.Generator().manual_seed(seed)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7,), (2, 3, 4)], ids=str)
def test_every_dtype_travels(shape):
    tensors = {str(dtype): random_tensor(dtype, shape) for dtype in DTYPES}
    back = travel({"tensors": tensors, "again": list(tensors.values())})
    for name, again in zip(tensors, back["again"], strict=True):
        assert_same_tensor(back["tensors"][name], tensors[name])
        assert again is back["tensors"][name], name


# --- one row for each way that memory can be laid out ------------------------------------------------------------

BASE = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
LAYOUTS = {
    "channels last": BASE.to(memory_format=torch.channels_last),
    "channels last 3d": BASE[None].to(memory_format=torch.channels_last_3d),
    "expanded": torch.arange(3.0).expand(1000, 3),
    "expanded from one": torch.tensor(4.0).expand(7, 9),
    "every second row": BASE[:, :, ::2],
    "a column of a large matrix": torch.arange(10_000.0).view(100, 100)[:, 7],
    "flipped": BASE.flip(0),
    "a window": torch.arange(20.0).unfold(0, 4, 1),
    "with an offset": BASE.flatten()[17:],
    "no dimensions, with an offset": BASE[1, 2, 3, 4],
    "diagonal": torch.arange(25.0).view(5, 5).diagonal(),
    "conjugate": torch.randn(3, 4, dtype=torch.complex64).conj(),
    "conjugate, transposed": torch.randn(3, 4, dtype=torch.complex64).T.conj(),
    "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
    "real part": torch.randn(3, dtype=torch.complex64).real,
    "sizes of one with odd strides": torch.empty_strided((1, 3), (77, 1)).fill_(1.0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_travels(name):
    assert_same_tensor(travel({"it": LAYOUTS[name], "beside": torch.arange(3)})["it"], LAYOUTS[name])


def test_an_expanded_tensor_costs_its_memory_and_not_its_elements():
    encoded = encode(torch.arange(3.0).expand(100_000, 3))
    assert sum(part.size_bytes for part in encoded.parts) == 12


def test_a_small_view_of_a_large_tensor_costs_what_it_shows():
    large = torch.zeros(1000, 1000)
    for view in (large[5], large[:, 5], large[5:7, 5:7]):
        encoded = encode(view)
        assert sum(part.size_bytes for part in encoded.parts) + len(encoded.envelope) < 5000


# --- tensors that are more than memory ---------------------------------------------------------------------------


def special_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.randn(5), 0.1, 10, torch.quint8)
        channelwise = torch.quantize_per_channel(torch.randn(2, 5), torch.ones(2), torch.zeros(2), 0, torch.qint8)
        csr = torch.eye(4).to_sparse_csr()
    named = torch.zeros(3)
    named.note = "an attribute"
    return {
        "leaf": torch.randn(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "frozen parameter": torch.nn.Parameter(torch.randn(2, 2), requires_grad=False),
        "quantised": quantised,
        "quantised by channel": channelwise,
        "sparse": torch.eye(4).to_sparse(),
        "sparse csr": csr,
        "meta": torch.empty(3, device="meta"),
        "with an attribute": named,
    }


@pytest.mark.parametrize("name", special_tensors())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_are_more_than_memory_travel(name):
    tensor = special_tensors()[name]
    back = travel({"it": tensor, "beside": torch.arange(3)})["it"]
    assert type(back) is type(tensor)
    for attribute in ("dtype", "shape", "layout", "device", "requires_grad"):
        assert getattr(back, attribute) == getattr(tensor, attribute)
    if tensor.is_quantized:
        assert back.qscheme() == tensor.qscheme()
        assert torch.equal(back.int_repr(), tensor.int_repr())
    elif tensor.layout is not torch.strided:
        assert torch.equal(back.to_dense(), tensor.to_dense())
    elif not tensor.is_meta:
        assert torch.equal(back, tensor)
    assert getattr(back, "note", None) == getattr(tensor, "note", None)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout_", [torch.strided, torch.jagged])
def test_a_nested_tensor_travels(layout_):
    nested = torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)], layout=layout_)
    back = travel([nested])[0]
    assert [part.tolist() for part in back.unbind()] == [[0.0, 1.0], [0.0, 1.0, 2.0]]


def test_a_packed_sequence_travels():
    packed = torch.nn.utils.rnn.pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    assert first_difference(travel(packed), packed) is None


# --- shared memory within one microbatch -------------------------------------------------------------------------


flat_microbatches = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([(2,), (3,), (2, 2)]), st.sampled_from([torch.float32, torch.int64])),
    max_size=3,
)


@given(rows=st.lists(st.tuples(st.sampled_from([list, tuple, dict]), flat_microbatches), min_size=2, max_size=6))
@settings(max_examples=200, deadline=None)
def test_microbatches_of_the_same_form_one_after_the_other_are_told_apart(rows):
    pool = {}
    for kind, forms in rows:
        tensors_ = [pool.setdefault(form, random_tensor(form[2], form[1], form[0])) for form in forms]
        value = {str(index): tensor for index, tensor in enumerate(tensors_)} if kind is dict else kind(tensors_)
        back = travel(value)
        assert first_difference(back, value) is None
        if kind is not dict:
            for first in range(len(value)):
                for second in range(len(value)):
                    assert (back[first] is back[second]) == (value[first] is value[second])


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_set_of_contiguous_views_of_one_tensor_keeps_values_and_aliasing(data):
    base = torch.arange(32, dtype=torch.int32)
    slices = data.draw(st.lists(st.tuples(st.integers(0, 31), st.integers(1, 32)), min_size=1, max_size=6))
    views = [base[start : start + length] for start, length in slices]
    back = travel(views)
    for ours, theirs in zip(back, views, strict=True):
        assert_same_tensor(ours, theirs)
    back[0][0] = base[slices[0][0]] = -7
    for ours, theirs in zip(back, views, strict=True):
        assert_same_tensor(ours, theirs)


# --- arrays ------------------------------------------------------------------------------------------------------


def arrays():
    base = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    return {
        "fortran": np.asfortranarray(base),
        "transposed": base.T,
        "strided": base[:, ::2, ::3],
        "reversed": base[::-1],
        "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
        "object": np.array([{"a": 1}, None, "text"], dtype=object),
        "object with arrays": np.array([np.arange(3), np.arange(2)], dtype=object),
        "datetime": np.array(["2026-01-01", "NaT"], dtype="datetime64[s]"),
        "timedelta": np.array([1, 2], dtype="timedelta64[ms]"),
        "structured": np.array([(1, 2.5, "x")], dtype=[("a", "<i4"), ("b", ">f8"), ("c", "U3")]),
        "bytes": np.array([b"a", b"bc"]),
        "void": np.zeros(3, dtype="V5"),
        "complex": np.array([1 + 2j]),
        "long double": np.arange(3, dtype=np.longdouble),
        "matrix of a subclass": np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
        "records": np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        "numpy strings": np.array(["a", "a much longer text than fits in place" * 5], dtype=np.dtypes.StringDType()),
    }


@pytest.mark.parametrize("name", arrays())
def test_every_kind_of_array_travels(name):
    array = arrays()[name]
    back = travel({"it": array, "beside": np.arange(3)})["it"]
    assert type(back) is type(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    if name == "object with arrays":
        assert [part.tolist() for part in back] == [part.tolist() for part in array]
    else:
        assert back.tolist() == array.tolist()


def test_a_read_only_array_stays_read_only():
    array = np.arange(3)
    array.flags.writeable = False
    assert not travel(array).flags.writeable
    assert travel(np.arange(3)).flags.writeable


# --- containers, text and everything else ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "text" * 100_000,
        b"\x00\xff" * 50_000,
        bytearray(b"abc" * 1000),
        {1, 2, 3},
        frozenset("ab"),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        Color.RED,
        torch.float32,
        torch.Size([1, 2]),
        np.float32(1.5),
        range(5),
        collections.OrderedDict(a=1, b=2),
        collections.Counter("aab"),
        10**1000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_neither_tensor_nor_array_travels(value):
    back = travel([value])[0]
    assert type(back) is type(value)
    assert back == value


def test_a_container_that_holds_itself_travels():
    value = {"tensor": torch.arange(3)}
    value["self"] = value
    back = travel(value)
    assert back["self"] is back


dtypes = st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.uint8, torch.complex64])
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
tensors = st.builds(random_tensor, dtypes, shapes, st.integers(0, 2**31)).flatmap(
    lambda tensor: st.permutations(range(tensor.dim())).map(tensor.permute)
)
numpy_arrays = hnp.arrays(
    st.one_of(
        hnp.floating_dtypes(endianness="?"), hnp.integer_dtypes(), hnp.boolean_dtypes(), hnp.unicode_string_dtypes()
    ),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
)
leaves = st.one_of(
    tensors, numpy_arrays, st.text(max_size=20), st.binary(max_size=20), st.integers(), st.floats(), st.none()
)
microbatches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.builds(Record, st.text(max_size=4), inner),
        st.builds(FrozenRecord, inner),
    ),
    max_leaves=12,
)


@given(value=microbatches, offset=st.sampled_from([0, 64, 4096]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_decoded_is_what_was_encoded(value, offset):
    assert first_difference(travel(value, offset), value) is None


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_views_of_one_storage_travel_whatever_their_dtypes_strides_and_offsets(data):
    # As a collate that packs everything into one buffer makes them; the storage's own start may lie anywhere.
    start = data.draw(st.integers(0, 24))
    storage = torch.arange(start + 256, dtype=torch.uint8)[start:]
    views = []
    for _ in range(data.draw(st.integers(1, 5))):
        dtype = data.draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.int64, torch.complex128]))
        whole = storage[-(start) % dtype.itemsize :]
        whole = whole[: len(whole) // dtype.itemsize * dtype.itemsize].view(dtype)
        begin, step = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 3))
        view = whole[begin::step][: data.draw(st.integers(0, 12))]
        views.append(view.expand(2, -1).T if data.draw(st.booleans()) else view)
    for ours, theirs in zip(travel(views), views, strict=True):
        assert_same_tensor(ours, theirs)


def test_a_microbatch_does_not_change_by_being_encoded():
    value = {"a": torch.arange(5), "b": np.arange(5)}
    travel(value)["a"][0] = 100
    assert value["a"].tolist() == value["b"].tolist() == [0, 1, 2, 3, 4]


def test_local_classes_and_functions_travel_and_come_back_as_the_callers_own():
    @dataclasses.dataclass
    class Local:
        tensor: torch.Tensor

    back = travel({"local": Local(torch.arange(3)), "function": lambda: 5})
    assert type(back["local"]) is Local
    assert back["function"]() == 5


def test_a_function_whose_closure_has_changed_travels_as_it_is_now():
    count = 0

    def current():
        return count

    seen = []
    for value in (1, 2):
        count = value
        seen.append(travel([current])[0]())
    assert seen == [1, 2]
