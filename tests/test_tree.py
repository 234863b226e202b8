import collections
import dataclasses
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fkat_data.device.host import map_tensors


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Record:
    tensor: torch.Tensor
    name: str
    size: int = dataclasses.field(init=False, default=7)


def doubled(value):
    return map_tensors(lambda tensor: tensor * 2, value)


ONE, TWO = torch.tensor(1), torch.tensor(2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ONE, TWO),
        ([ONE, "a"], [TWO, "a"]),
        ((ONE, None), (TWO, None)),
        ({"a": ONE, 1: [ONE]}, {"a": TWO, 1: [TWO]}),
        (Pair(ONE, "b"), Pair(TWO, "b")),
        (Record(ONE, "n"), Record(TWO, "n")),
        (collections.OrderedDict(b=ONE, a=ONE), collections.OrderedDict(b=TWO, a=TWO)),
        (collections.UserDict(a=ONE), collections.UserDict(a=TWO)),
        (types.MappingProxyType({"a": ONE}), types.MappingProxyType({"a": TWO})),
        ("text", "text"),
        (None, None),
        (torch.Size([1, 2]), torch.Size([1, 2])),
        ([], []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_tensor_in_a_container_is_mapped_and_the_container_kept(value, expected):
    result = doubled(value)
    assert type(result) is type(expected)
    assert result == expected


def test_a_default_dict_keeps_its_items():
    assert doubled(collections.defaultdict(list, a=ONE)) == {"a": TWO}


def test_arrays_and_strange_objects_are_left_alone():
    array, strange = np.arange(3), object()
    assert doubled([array, strange])[0] is array
    assert doubled([array, strange])[1] is strange


def test_what_torch_returns_from_sort_is_mapped():
    result = doubled(torch.sort(torch.tensor([2, 1])))
    assert result.values.tolist() == [2, 4]


def test_an_object_with_a_method_to_of_its_own_counts_as_a_tensor():
    class Graph:
        moved_to = None

        def to(self, device):
            moved = Graph()
            moved.moved_to = device
            return moved

    moved = map_tensors(lambda value: value.to("meta"), [Graph(), torch.zeros(1)])
    assert moved[0].moved_to == "meta"
    assert moved[1].is_meta


def test_a_class_is_no_dataclass_instance():
    assert doubled([Record])[0] is Record


def test_a_packed_sequence_can_be_moved():
    packed = torch.nn.utils.rnn.pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    moved = map_tensors(lambda tensor: tensor.to("meta"), packed)
    assert moved.data.is_meta


def test_a_dataclass_with_an_init_only_field_is_mapped():
    @dataclasses.dataclass
    class Scaled:
        tensor: torch.Tensor
        scale: dataclasses.InitVar[int]

        def __post_init__(self, scale):
            self.tensor = self.tensor * scale

    assert doubled(Scaled(ONE, 3)).tensor == 6
