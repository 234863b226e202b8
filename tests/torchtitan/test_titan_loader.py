"""What torchtitan asks of a loader: its base class, its builders' arguments, its trainer's loop and its checkpoints.

The tests run with the base class of an installed torchtitan too. Without one, its contract stands in, as of its source:
torch's ``Stateful`` with an abstract ``__iter__``.
"""

import importlib
from abc import ABC, abstractmethod
from itertools import islice

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader, TensorDataset

from fkat_data import ConfigurationError, DistributedDataParallelShardSampler, ShardedDataLoader
from fkat_data.torchtitan import TitanDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is .*:UserWarning")

SHARDS = [str(10 * index) for index in range(6)]
NUM_SAMPLES = 24


class Contract(Stateful, ABC):
    @abstractmethod
    def __iter__(self): ...


def base_classes():
    found = [Contract]
    for module in ("torchtitan.components.data.loader", "torchtitan.components.dataloader"):
        try:
            found.append(importlib.import_module(module).BaseDataLoader)
        except ImportError:
            continue
    return found


def collate(samples):
    numbers = torch.stack([number for (number,) in samples])
    return {"input": numbers}, numbers + 1


def factory(shard):
    return DataLoader(TensorDataset(torch.arange(4) + int(shard)), batch_size=2, collate_fn=collate)


@pytest.fixture(params=base_classes(), ids=lambda base: base.__module__)
def build(request):
    class Shards(TitanDataLoader, request.param):
        def __init__(self, config, *, dp_world_size, dp_rank, tokenizer, repeat=True, **sizes):
            sampler = DistributedDataParallelShardSampler(SHARDS, dp_world_size, dp_rank, drop_last=False)
            loader = ShardedDataLoader(7, sampler, factory, dp_rank=dp_rank, multiprocessing=False)
            super().__init__(loader, repeat=repeat)

    def built(dp_world_size=1, dp_rank=0, **options):
        # The sizes are those of torchtitan's versions.
        sizes = {"local_batch_size": 2, "seq_len": 1, "max_context_length": 1, "num_tokens_per_batch": 2}
        return Shards(None, dp_world_size=dp_world_size, dp_rank=dp_rank, tokenizer=None, **sizes, **options)

    return built


def steps(loader, count):
    """What a trainer reads in that many steps: it iterates once, and unpacks inputs and labels."""
    return [number for inputs, labels in islice(loader, count) for number in inputs["input"].tolist() if len(labels)]


def test_it_is_a_loader_of_torchtitans(build):
    assert isinstance(build(), Stateful)


def test_the_trainer_reads_epoch_after_epoch(build):
    assert steps(build(), 30) == (steps(build(), 12) * 3)[: 2 * 30]


def test_a_validation_ends_after_one_epoch(build):
    assert len(steps(build(repeat=False), None)) == NUM_SAMPLES


def test_a_checkpoint_resumes_on_the_next_microbatch_in_any_epoch(build, tmp_path):
    whole = steps(build(), 40)
    for num_before in (0, 5, 12, 17, 25):
        loader, fresh = build(), build()
        steps(loader, num_before)
        checkpoint.save({"dataloader": loader}, checkpoint_id=tmp_path / str(num_before))
        checkpoint.load({"dataloader": fresh}, checkpoint_id=tmp_path / str(num_before))
        assert steps(fresh, 10) == whole[2 * num_before : 2 * num_before + 20]


@pytest.mark.parametrize("sizes", [(1, 2), (1, 4)])
def test_a_checkpoint_resumes_on_another_number_of_ranks(build, tmp_path, sizes):
    before, after = sizes
    loaders = [build(before, rank) for rank in range(before)]
    delivered = [number for loader in loaders for number in steps(loader, 5)]
    checkpoint.save({"dataloader": loaders[0]}, checkpoint_id=tmp_path)
    for rank in range(after):
        loader = build(after, rank, repeat=False)
        checkpoint.load({"dataloader": loader}, checkpoint_id=tmp_path)
        delivered += steps(loader, None)
    assert sorted(delivered) == sorted(int(shard) + index for shard in SHARDS for index in range(4))


def test_an_empty_state_changes_nothing(build):
    loader = build()
    loader.load_state_dict({})
    assert steps(loader, 3) == steps(build(), 3)


def test_the_trainer_closes_it_any_number_of_times(build):
    loader = build()
    steps(loader, 1)
    loader.close()
    loader.close()
    TitanDataLoader(Empty()).close()


class Empty:
    def __iter__(self):
        return iter(())

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict): ...


def test_a_loader_that_never_delivers_is_an_error():
    with pytest.raises(ConfigurationError, match="delivers microbatches on this rank"):
        steps(TitanDataLoader(Empty()), 1)


def test_a_loader_without_a_state_is_refused():
    with pytest.raises(ConfigurationError, match="state_dict"):
        TitanDataLoader([1, 2])
