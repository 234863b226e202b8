"""torch.distributed.checkpoint takes a streaming state apart, and reads the parts that the resuming loader shows."""

from itertools import islice

import pytest
from streaming_examples import numbers, worlds, write
from torch.distributed import checkpoint

from fkat_data.streaming import Stream, StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is .*:UserWarning")

GLOBAL_BATCH = 8
NUM_SAMPLES = 96


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data", NUM_SAMPLES)


def loaders(num_ranks, **options):
    """One for each rank; global batches are of one size in every world."""
    batch_size = GLOBAL_BATCH // num_ranks
    return [
        StreamingDataLoader(StreamingDataset(world=own, batch_size=batch_size, shuffle=True, **options))
        for own in worlds(1, num_ranks)
    ]


def read(ranks, num_steps=None):
    return [number for loader in ranks for batch in islice(numbers(loader), num_steps) for number in batch]


def through(saved, fresh, folder):
    """Save the state of the first rank, as all have it, and load it on every rank of a fresh job."""
    checkpoint.save({"loader": saved[0]}, checkpoint_id=folder)
    for loader in fresh:
        checkpoint.load({"loader": loader}, checkpoint_id=folder)


@pytest.mark.parametrize("algorithm", ["block", "py1e"])
@pytest.mark.parametrize("sizes", [(2, 1), (2, 4), (4, 2, 1)])
def test_any_number_of_ranks_resumes_from_any_other_and_reads_each_sample_once(tmp_path, data, algorithm, sizes):
    options = {"local": data, "shuffle_algo": algorithm, "num_canonical_nodes": 4}
    ranks, found = loaders(sizes[0], **options), []
    for number, size in enumerate(sizes[1:]):
        found += [loader_numbers for loader in ranks for loader_numbers in steps(loader, 3)]
        assert len({str(loader.state_dict()) for loader in ranks}) == 1
        fresh = loaders(size, **options)
        through(ranks, fresh, tmp_path / str(number))
        ranks = fresh
    assert sorted([*found, *read(ranks)]) == list(range(NUM_SAMPLES))


def steps(loader, count):
    """The numbers of the next batches; the loader stays there."""
    return [number for batch in islice(loader, count) for number in batch["number"].tolist()]


def test_what_is_left_out_is_read_into_a_loader_that_leaves_out_nothing(tmp_path, data):
    skip = [{"epoch": 0, "batches": [4, 6]}, {"samples": [3, 17]}]
    ranks = loaders(1, local=data, shuffle_algo="block", skip=skip)
    delivered = steps(ranks[0], 2)
    fresh = loaders(1, local=data, shuffle_algo="block")
    through(ranks, fresh, tmp_path / "checkpoint")
    assert fresh[0].state_dict() == ranks[0].state_dict()
    left = read(fresh)
    assert len(delivered) + len(left) <= NUM_SAMPLES - 2 * GLOBAL_BATCH
    assert not {3, 17} & {*delivered, *left}


def test_weights_of_later_epochs_may_change(tmp_path, data):
    more = write(tmp_path / "more", 40, first=1000)
    schedule = [{"from_sample": 0, "weights": [3, 1]}, {"from_sample": 80, "weights": [0, 1]}]
    options = {"streams": [Stream(local=data), Stream(local=more)], "epoch_size": 40, "shuffle_algo": "block"}
    ranks = loaders(1, weight_schedule=schedule, **options)
    steps(ranks[0], 2)
    fresh = loaders(1, weight_schedule=[*schedule, {"from_sample": 120, "weights": [1, 1]}], **options)
    through(ranks, fresh, tmp_path / "checkpoint")
    ranks[0].load_state_dict(ranks[0].state_dict())
    assert read(fresh) == read(ranks)
