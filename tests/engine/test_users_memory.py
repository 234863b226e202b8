"""What a microbatch shares with the dataset: nothing, in process as with worker processes."""

import threading

import numpy as np
import pytest
import torch
from loader_examples import make
from torch.utils.data import DataLoader
from walks import both_modes


def refilled(shard):
    """A producer that has one buffer, and a length that shows only at its end."""
    tensor, array, kept = torch.zeros(3), np.zeros(2), {"tensor": torch.zeros(1), "list": [0]}
    for number in range(4):
        tensor.fill_(number)
        array.fill(number)
        kept["list"][0] = number
        yield {"tensor": tensor, "array": array, "kept": kept, "column": tensor[::2]}


def held():
    return [torch.full((4,), float(number)) for number in range(4)]


class HoldingTexts(list):
    def __getitems__(self, indices):
        return self[indices[0] % 2]


@both_modes
def test_a_producer_that_fills_its_buffer_again_changes_no_microbatch(multiprocessing, processes):
    with make(["a"], refilled, multiprocessing=multiprocessing) as loader:
        iterator = iter(loader)
        first = next(iterator)
        assert first["tensor"].tolist() == [0.0] * 3
        rest = list(iterator)
    for number, microbatch in enumerate([first, *rest]):
        assert microbatch["tensor"].tolist() == [number] * 3
        assert microbatch["array"].tolist() == [number] * 2
        assert microbatch["kept"]["list"] == [number]
        assert microbatch["column"].tolist() == [number] * 2


def products():
    """Factories of products that hold their data, by name; each holds the same."""
    holding, texts = held(), HoldingTexts([["a", "b"], ["a", "b"]])
    return {
        "a list": lambda shard: holding,
        "an iterator": lambda shard: iter(holding),
        "samples as they are": lambda shard: DataLoader(holding, batch_size=None),
        "a collate_fn that hands through": lambda shard: DataLoader(
            holding, batch_size=1, collate_fn=lambda samples: samples[0]
        ),
        "stacked samples": lambda shard: DataLoader(holding, batch_size=1),
        "texts": lambda shard: DataLoader(texts, batch_size=2),
    }


@both_modes
@pytest.mark.parametrize("product", products())
def test_what_a_trainer_changes_in_place_is_as_it_was_in_the_next_epoch(multiprocessing, product, processes):
    with make(["a"], products()[product], multiprocessing=multiprocessing) as loader:
        epochs = []
        for _ in range(2):
            epochs.append([])
            for microbatch in loader:
                if isinstance(microbatch, torch.Tensor):
                    epochs[-1].append(microbatch.tolist())
                    microbatch.add_(100)
                else:
                    epochs[-1].append(list(microbatch))
                    microbatch.append("changed")
    assert epochs[0] == epochs[1]


def test_stacked_samples_are_not_copied_again():
    def size_bytes(**options):
        with make(["a"], lambda shard: DataLoader(held(), batch_size=2, **options)) as loader:
            list(loader)
            return loader.statistics().delivered_bytes

    assert size_bytes() == 0
    assert size_bytes(collate_fn=torch.stack) > 0


class Sample:
    """Counts what is made, and refuses attributes that it does not know."""

    __slots__ = ("tensor", "when")
    total = 0

    def __init__(self, tensor):
        self.tensor = tensor
        self.when = lambda: "now"
        type(self).total += 1


def test_classes_functions_and_what_cannot_be_pickled_stay_what_they_are():
    lock, tensor = threading.Lock(), torch.zeros(2)

    class Local:
        total = 7

    def factory(shard):
        Local.total += 1
        return iter([Sample(tensor), {"lock": lock, "parts": [tensor, (lock, tensor)], "local": Local()}, Local])

    sample, parts, kind = make(["a"], factory)
    assert type(sample) is Sample
    assert (Sample.total, sample.when()) == (1, "now")
    sample.tensor.add_(1)
    assert parts["lock"] is parts["parts"][1][0] is lock
    parts["parts"][0].add_(1)
    parts["parts"][1][1].add_(1)
    assert tensor.tolist() == [0, 0]
    assert type(parts["local"]) is kind is Local
    assert Local.total == 8


def test_a_microbatch_that_exits_while_it_is_pickled_is_handed_through_in_process():
    class Exiting:
        def __reduce__(self):
            raise SystemExit(4)

    exiting = Exiting()
    assert next(iter(make(["a"], lambda shard: iter([[exiting]]))))[0] is exiting
