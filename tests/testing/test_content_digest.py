import collections
import copy
import dataclasses
import decimal
import enum
import io
import math
from typing import NamedTuple

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from fkat_data.testing import digest, first_difference


@dataclasses.dataclass
class Sample:
    tokens: object
    label: object = None


class Pair(NamedTuple):
    left: object
    right: object


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Plain:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Strings(list):
    pass


DTYPES = [torch.uint8, torch.int16, torch.int64, torch.float32, torch.bfloat16, torch.complex64, torch.bool]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = draw(st.lists(st.integers(0, 1), min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(values).reshape(shape).to(draw(st.sampled_from(DTYPES)))


@st.composite
def arrays(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    values = draw(st.lists(st.integers(0, 1), min_size=math.prod(shape), max_size=math.prod(shape)))
    return np.array(values).reshape(shape).astype(draw(st.sampled_from(["<i2", ">i2", "f4", "U1", "?", "O"])))


KEYS = st.one_of(st.sampled_from(["a", "b", "1", ""]), st.sampled_from([1, True, None, 1.0]), st.just((1, 2)))
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, 1j]),
    st.sampled_from(["", "a", "1", "\ud800"]),
    st.sampled_from([b"", b"a", bytearray(b"a")]),
    st.sampled_from([Colour.RED, Colour.GREEN, np.float32(1), np.float64(1), np.int64(1)]),
    st.frozensets(st.integers(0, 2), max_size=2),
)
TREES = st.recursive(
    st.one_of(PLAIN, tensors(), arrays()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.lists(inner, max_size=2).map(Strings),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Sample, inner, inner),
        st.builds(Plain, field=inner),
    ),
    max_leaves=6,
)


def canonical(value):
    """What equality has to mean here, written another way: as nested tuples that compare by ==."""
    if isinstance(value, torch.Tensor):
        content = value.dtype, tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).tolist()
    elif isinstance(value, (np.ndarray, np.generic)):
        items = [canonical(item) for item in value.ravel()] if value.dtype.hasobject else value.tobytes()
        content = value.dtype.str, value.shape, items
    elif isinstance(value, (list, tuple)):
        content = [canonical(item) for item in value]
    elif isinstance(value, dict):
        content = [(canonical(key), canonical(item)) for key, item in value.items()]
    elif isinstance(value, (Sample, Plain)):
        content = canonical(vars(value))
    elif isinstance(value, frozenset):
        content = sorted(repr(item) for item in value)
    else:
        content = repr(value)  # of floats too: -0.0 and nan have texts of their own
    return type(value), content


@given(TREES, TREES)
def test_digests_are_equal_if_and_only_if_the_values_are(first, second):
    are_equal = canonical(first) == canonical(second)
    assert (digest(first) == digest(second)) is are_equal
    assert (first_difference(first, second) is None) is are_equal


@given(TREES)
def test_a_copy_and_what_crosses_a_process_keep_their_digest(value):
    assert digest(copy.deepcopy(value)) == digest(value)
    assert digest(cloudpickle.loads(cloudpickle.dumps(value))) == digest(value)
    assert first_difference(value, cloudpickle.loads(cloudpickle.dumps(value))) is None


@given(TREES, st.data())
def test_any_change_anywhere_is_found_at_its_path(value, data):
    tree = {"before": [1, 2], "here": value, "after": 3}
    changed = data.draw(TREES.filter(lambda other: canonical(other) != canonical(value)))
    difference = first_difference(tree, {**tree, "here": changed})
    assert difference.path.startswith("['here']")
    assert digest(tree) != digest({**tree, "here": changed})


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (1, 2, "the microbatch itself: 1 became 2"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "['a'][1]: 2 became 3"),
        ({"a": 1}, {"b": 1}, "['a']: ['a'] became ['b']"),
        ([1], [1, 2], "the microbatch itself: list of 1 became list of 2"),
        (Pair(1, 2), Pair(1, 3), ".right: 2 became 3"),
        (Plain(a=1), Plain(a=2), ".a: 1 became 2"),
        (
            {"x": torch.zeros(2, 3)},
            {"x": torch.tensor([[0.0, 0, 0], [0, 7, 7]])},
            "['x'], element [1, 1]: 0.0 (torch.float32 [2, 3]) became 7.0 (torch.float32 [2, 3])",
        ),
        (torch.zeros(2), torch.zeros(2).double(), "the microbatch itself: torch.float32 [2] became torch.float64 [2]"),
        (np.array([1, 2]), np.array([1, 3]), "the microbatch itself, element [1]: 2 (numpy.ndarray <i8 [2]) became 3"),
        (np.array([1, "a"], object), np.array([1, "b"], object), ".flat[1]: 'a' became 'b'"),
        ("x" * 1000, "y", "the microbatch itself: '" + "x" * 59 + "… became 'y'"),
    ],
)
def test_a_difference_is_told_with_its_position(first, second, text):
    assert str(first_difference(first, second)).startswith(text)


OTHERS = [
    pack_sequence([torch.ones(3), torch.ones(2)]),
    torch.eye(3).to_sparse(),
    np.array([(1, 2.0)], dtype=[("a", "i1"), ("b", "f8")]),
    np.ma.masked_array([1, 2], [False, True]),
    np.datetime64("2020-01-01"),
    collections.OrderedDict(a=1),
    collections.deque([1, 2], maxlen=3),
    decimal.Decimal("1.1"),
    torch.float32,
    print,
    {"a", "b"},
]


@pytest.mark.parametrize("index", range(len(OTHERS)))
def test_any_object_that_pickles_has_a_digest_of_its_own(index):
    value = OTHERS[index]
    # torch keeps a sparse tensor that pickle alone has read, and the next torch.load warns of it.
    saved = io.BytesIO()
    torch.save(value, saved)
    saved.seek(0)
    assert digest(torch.load(saved, weights_only=False)) == digest(value)
    assert [other for other in range(len(OTHERS)) if digest(OTHERS[other]) == digest(value)] == [index]


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*quantized", "ignore:The PyTorch API of nested", "ignore:Typed")
@pytest.mark.parametrize(
    "made",
    [
        torch.Tensor.to_sparse_csr,
        torch.Tensor.to_sparse_csc,
        lambda tensor: tensor.to_sparse_bsr((1, 1)),
        lambda tensor: torch.quantize_per_tensor(tensor, 0.5, 0, torch.qint8),
        lambda tensor: torch.nested.nested_tensor([tensor, tensor[:1]]),
    ],
)
def test_tensors_of_other_layouts_differ_by_their_content(made):
    ones, twos = made(torch.eye(2)), made(2 * torch.eye(2))
    assert digest(ones) == digest(made(torch.eye(2))) != digest(twos)
    assert first_difference(ones, twos) is not None


def test_strides_and_views_do_not_count():
    tensor = torch.arange(6).reshape(2, 3)
    assert digest(tensor.t()) == digest(tensor.t().contiguous())
    assert digest(torch.ones(1).expand(4)) == digest(torch.ones(4))
    assert digest(torch.tensor([1 + 1j]).conj()) == digest(torch.tensor([1 - 1j]))
    assert digest(np.arange(6).reshape(2, 3).T) == digest(np.ascontiguousarray(np.arange(6).reshape(2, 3).T))


def test_what_holds_itself_ends():
    first, second = [1], [2]
    first.append(first)
    second.append(second)
    assert digest(first) == digest(copy.deepcopy(first)) != digest(second)


def test_what_does_not_pickle_is_refused():
    with pytest.raises(TypeError, match="pickle"):
        digest({"generator": (number for number in range(3))})


def test_the_digest_is_the_same_in_every_process(run_script):
    values = "{'a': [1, 2.5, None, 'é', {'x', 'y'}], 'b': torch.arange(3).bfloat16(), 'c': np.ones((2, 2), 'f4')}"
    text = f"import numpy as np, torch\nfrom fkat_data.testing import digest\nprint(digest({values}))"
    found = eval(f"digest({values})", {"np": np, "torch": torch, "digest": digest})
    assert run_script(text).stdout.strip() == found
