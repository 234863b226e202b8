"""The contract of ``StreamSource``, for each kind of dataset that has one."""

import copy
import pickle

import pytest
from own_datasets import ByIndex, ByTransform, Iterated, Together
from streaming_examples import numbers
from torch.utils.data import Dataset, default_collate

from fkat_data.plan.position import Position
from fkat_data.seeding import ShardRng
from fkat_data.streaming import LocalDataset, StreamingDataLoader, StreamingDataset
from fkat_data.types import StreamSource, stream_source_of
from fkat_data.worker.microbatch_source import Opening

OPENING = Opening(ShardRng.of(0, 0, 0, 0))
KINDS = (StreamingDataset, ByIndex, ByTransform, Together, Iterated)
PLAN = {"num_workers": 0, "collate_fn": default_collate, "drop_last": False, "leaves_empty_rest": True}


@pytest.fixture(params=KINDS)
def dataset(options, request):
    return request.param(**options)


def planned(source, count=None):
    """What the tasks of an epoch's plan give, in order, and the plan."""
    plan = source.plan(0, **PLAN)
    begun = plan.begin(plan.first()).position
    plan.beginning = None  # as a loader does once its iterator is there
    found, index = [], 0
    while index != count and (task := plan.payload(begun.epoch, index)) is not None:
        product = source.product(task, default_collate)
        if plan.num_strands is not None:
            return numbers(product), plan
        found += numbers(product.microbatch_source(OPENING).iterate(task.first))
        index += 1
    return found, plan


def test_it_has_all_that_a_loader_asks_for(dataset):
    source = stream_source_of(dataset)
    expected = {name for name in vars(StreamSource) if not name.startswith("_")}
    assert len(expected) == 17
    assert {name for name in dir(source) if not name.startswith("_")} == expected | {"reader"}


def test_its_tasks_give_what_its_loader_gives(dataset):
    expected = [numbers(StreamingDataLoader(copy.deepcopy(dataset)))]
    source = stream_source_of(dataset)
    assert planned(source)[0] == expected[0]
    source.next_epoch = 0
    assert planned(source)[0] == expected[0]
    assert source.next_epoch == 1


def test_a_state_of_its_plan_says_where_it_goes_on(options):
    source = stream_source_of(StreamingDataset(**options))
    found, plan = planned(source)
    state = plan.saved(Position(0, 0, 0, 5))["stream"]
    for other in (source, stream_source_of(StreamingDataset(**options))):
        other.load_state_dict(state)
        assert planned(other)[0] == found[5:]


def test_a_copy_of_it_is_of_the_copied_dataset(dataset):
    for copied in (pickle.loads(pickle.dumps([dataset, stream_source_of(dataset)])), None):
        own, source = copied or copy.deepcopy([dataset, stream_source_of(dataset)])
        source.next_epoch = 3
        assert (own.next_epoch, dataset.next_epoch) == (3, 0)


def test_an_iteration_does_not_change_what_workers_have(dataset):
    source = stream_source_of(dataset)
    before = pickle.dumps(source.shipment)
    dataset.next_epoch = 2
    next(iter(dataset))
    assert pickle.dumps(source.shipment) == before


def test_the_rest_of_it(options):
    dataset = ByIndex(**options | {"batch_size": None, "shuffle_seed": 5})
    source = stream_source_of(dataset)
    assert (source.batch_size, source.seed, source.fetches_shards, source.ranks()) == (None, 5, False, (1, 0))
    source.batch_size = 3
    assert dataset.batch_size == 3
    samples = source.samples([7, 2])
    assert [sample["number"] for sample in samples] == [1007, 1002]
    assert source.files.paths == []
    error = KeyError("a")
    source.note_columns(error)
    assert not getattr(error, "__notes__", [])
    assert source.windows(4, is_read_here=True).order_fields(0, None)["shuffle_seed"] == 5
    assert source.window_fingerprint().keys() == {"stream_" + name for name in source.reader.epochs.fingerprint()}


class Wrapper(Dataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __getattr__(self, name):
        return getattr(self.dataset, name)


def test_no_other_dataset_has_one(options):
    for other in (Wrapper(StreamingDataset(**options)), LocalDataset(options["local"]), [1], None):
        assert stream_source_of(other) is None
