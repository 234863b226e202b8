"""A list that grew while a run was stopped: epochs that were begun go on over the list of then, and the next one has all."""

import json
import logging
import shutil
from collections import Counter
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streaming_examples import write
from torch.utils.data import ConcatDataset, RandomSampler, Subset
from torch.utils.data import DataLoader as TorchDataLoader

from fkat_data import (
    DataLoader,
    DistributedDataParallelShardSampler,
    ShardedDataLoader,
    ShuffledShardSampler,
    StateMismatchError,
)
from fkat_data.datasets import (
    DistributedShardedDataset,
    MapDataset,
    PackedDataset,
    ResumableSequentialSampler,
)
from fkat_data.streaming import Stream, StreamingDataLoader, StreamingDataset, World

_NUM_EPOCHS = 4


def microbatches_of(shard):
    return [f"{shard}.{number}" for number in range(2 + int(shard) % 3)]


class ShardJob:
    """The ranks of a job, over the first shards of a list; a plain list says what each epoch must have."""

    def __init__(self, size, num_ranks, *, is_shuffled, drop_last):
        self._is_shuffled, self._drop_last = is_shuffled, drop_last
        self.size, self.num_ranks = size, num_ranks
        self.delivered = Counter()
        # The shards and the ranks of each epoch that was begun before the newest load.
        self._begun = {}
        self.loaders = [self._loader(rank) for rank in range(num_ranks)]

    def _sampler(self, size, num_ranks, rank):
        shards = [str(shard) for shard in range(size)]
        order = ShuffledShardSampler(shards, seed=5) if self._is_shuffled else shards
        return DistributedDataParallelShardSampler(order, num_ranks, rank, drop_last=self._drop_last)

    def _loader(self, rank):
        sampler = self._sampler(self.size, self.num_ranks, rank)
        return ShardedDataLoader(3, sampler, microbatches_of, multiprocessing=False, dp_rank=rank)

    def run(self, rank, count):
        for _ in range(count):
            loader = self.loaders[rank]
            try:
                epoch, microbatch = loader.epoch, loader.load_batch_sync()
            except StopIteration:
                continue
            self.delivered[epoch, microbatch] += 1

    def save(self):
        states = [json.loads(json.dumps(loader.local_state_dict())) for loader in self.loaders]
        return ShardedDataLoader.merge_state_dicts(states)

    def resume(self, state, size, num_ranks):
        """Go on over more shards, with another number of ranks."""
        last = max((epoch for epoch, _ in self.delivered), default=-1)
        begun = dict(self._begun)
        for epoch in range(last + 1):
            begun.setdefault(epoch, (self.size, self.num_ranks))
        self.size, self.num_ranks, self._begun = size, num_ranks, begun
        self.loaders = [self._loader(rank) for rank in range(num_ranks)]
        for loader in self.loaders:
            loader.load_state_dict(state)

    def finish(self, num_epochs):
        for rank, loader in enumerate(self.loaders):
            while loader.epoch < num_epochs:
                self.run(rank, 1)

    def expected(self, epoch):
        size, num_ranks = self._begun.get(epoch, (self.size, self.num_ranks))
        samplers = [self._sampler(size, num_ranks, rank) for rank in range(num_ranks)]
        shards = [shard for sampler in samplers for shard in sampler.shards(epoch)]
        return Counter((epoch, microbatch) for shard in shards for microbatch in microbatches_of(shard))

    def check(self, num_epochs):
        for epoch in range(num_epochs):
            found = Counter({key: count for key, count in self.delivered.items() if key[0] == epoch})
            assert found == self.expected(epoch), epoch


@given(st.data(), st.booleans(), st.booleans())
def test_ranks_deliver_each_shard_of_an_epoch_once_whatever_was_appended_meanwhile(data, is_shuffled, drop_last):
    num_ranks = data.draw(st.integers(1, 4))
    job = ShardJob(data.draw(st.integers(num_ranks, 9)), num_ranks, is_shuffled=is_shuffled, drop_last=drop_last)
    for _ in range(data.draw(st.integers(1, 4))):
        for rank in range(job.num_ranks):
            job.run(rank, data.draw(st.integers(0, 14)))
        size = job.size + data.draw(st.integers(0, 4))
        job.resume(job.save(), size, data.draw(st.integers(1, min(4, size))))
    job.finish(_NUM_EPOCHS)
    last = max(epoch for epoch, _ in job.delivered)
    job.finish(last + 1)
    job.check(last + 1)


class Files:
    """Numbers in files of a few each, without files."""

    def __init__(self, sizes):
        self._sizes = sizes
        self.paths = [f"file {number}" for number in range(len(sizes))]

    def __len__(self):
        return sum(self._sizes)

    def __getitem__(self, index):
        return int(index)

    def file_digests(self):
        return [1000 * number + size for number, size in enumerate(self._sizes)]


class IndexJob:
    """The ranks of a job over a dataset with indices, of which a plain list says what each epoch must have."""

    def __init__(self, sizes, num_ranks, **options):
        self._sizes, self._options = sizes, options
        self.num_ranks = num_ranks
        self.num_files = 1
        self.delivered = Counter()
        self._begun = {}

    def begin(self, num_files, state=None, num_ranks=None):
        """Begin a run over some files, at a state."""
        last = max((epoch for epoch, _ in self.delivered), default=-1)
        for epoch in range(last + 1):
            self._begun.setdefault(epoch, self.num_files)
        self.num_files = num_files
        self.num_ranks = num_ranks or self.num_ranks
        self.loaders = []
        for rank in range(self.num_ranks):
            loader = DataLoader(Files(self._sizes[:num_files]), seed=4, **self._options)
            loader.deal_out(self.num_ranks, rank, even_batches=False)
            if state is not None:
                loader.load_state_dict(state)
            self.loaders.append(loader)
        self._iterators = {}

    def run(self, count):
        """Let all ranks deliver some microbatches, in step."""
        for _ in range(count):
            slowest = min(loader.epoch for loader in self.loaders)
            for loader in self.loaders:
                if loader not in self._iterators:
                    if loader.epoch > slowest:
                        continue  # it had nothing of the epoch that others are in
                    self._iterators[loader] = loader.epoch, iter(loader)
                epoch, iterator = self._iterators[loader]
                batch = next(iterator, None)
                if batch is None:
                    continue
                self.delivered.update((epoch, sample) for sample in batch.tolist())
            if not any(iterator.is_under_way and loader.step for loader, (_, iterator) in self._iterators.items()):
                self._iterators.clear()

    def save(self):
        states = [json.loads(json.dumps(loader.local_state_dict())) for loader in self.loaders]
        return DataLoader.merge_state_dicts(states)

    def check(self, num_epochs):
        for epoch in range(num_epochs):
            found = Counter({key: count for key, count in self.delivered.items() if key[0] == epoch})
            length = sum(self._sizes[: self._begun.get(epoch, self.num_files)])
            assert found == Counter((epoch, sample) for sample in range(length)), epoch


def rows_of(window):
    return window


@given(st.data())
def test_ranks_deliver_each_sample_of_an_epoch_once_whatever_files_were_appended_meanwhile(data):
    sizes = [6, *data.draw(st.lists(st.integers(0, 6), min_size=11, max_size=11))]
    options = {"batch_size": data.draw(st.integers(1, 4)), "shuffle": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        options |= {"window_fn": rows_of, "window_size": data.draw(st.integers(1, 2))}
    job, num_files = IndexJob(sizes, data.draw(st.integers(1, 3)), **options), data.draw(st.integers(1, 4))
    job.begin(num_files)
    for _ in range(data.draw(st.integers(1, 4))):
        job.run(data.draw(st.integers(0, 9)))
        num_files = min(12, num_files + data.draw(st.integers(0, 3)))
        job.begin(num_files, job.save(), data.draw(st.integers(1, 3)))
    while min(loader.epoch for loader in job.loaders) < _NUM_EPOCHS:
        job.run(1)
    job.check(min(loader.epoch for loader in job.loaders))


def ranks_of_files(num_files, num_ranks, state=None, **options):
    loaders = []
    for rank in range(num_ranks):
        loader = DataLoader(Files([5] * num_files), 2, shuffle=True, seed=3, **options)
        if num_ranks > 1:
            loader.deal_out(num_ranks, rank)
        if state is not None:
            loader.load_state_dict(state)
        loaders.append(loader)
    return loaders


def samples_in(batches):
    return [number for batch in batches for number in batch.tolist()]


@given(
    st.integers(0, 3), st.integers(0, 3), st.sets(st.integers(0, 19), max_size=6), st.integers(5, 8), st.integers(1, 3)
)
def test_what_was_left_out_before_files_were_appended_is_in_no_later_epoch(before, since, out, num_files, num_ranks):
    (loader,) = ranks_of_files(4, 1)
    iterator = iter(loader)
    had = samples_in(islice(iterator, before))
    loader.exclude(out)
    had += samples_in(islice(iterator, since))
    state = json.loads(json.dumps(loader.state_dict()))
    loaders = ranks_of_files(num_files, num_ranks, state)
    rest = [number for loader in loaders for number in samples_in(loader)]
    # Where nothing was delivered, the epoch has not begun, and has all.
    of_first = 20 if before + since else 5 * num_files
    assert {*had, *rest} == {*range(of_first)} - (out - {*had[: 2 * before]})
    assert {number for loader in loaders for number in samples_in(loader)} == {*range(5 * num_files)} - out


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(5, 8), st.integers(1, 3))
def test_what_was_not_committed_before_files_were_appended_comes_again(commits, num_files, num_ranks):
    (loader,) = ranks_of_files(4, 1, commit="manual")
    used = []
    for batch, is_used in zip(loader, commits, strict=False):
        if is_used:
            loader.commit(loader.ticket)
            used += batch.tolist()
    state = json.loads(json.dumps(loader.state_dict()))
    for loader in ranks_of_files(num_files, num_ranks, state, commit="manual"):
        for batch in loader:
            loader.commit(loader.ticket)
            used += batch.tolist()
    assert {*used} == {*range(20)}
    assert len(used) - 20 < 2 * num_ranks  # the last round may be filled up


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """Return a function that returns the folder of a dataset of some shards of twenty numbers each."""
    folder = tmp_path_factory.mktemp("streams")
    whole = Path(write(folder / "whole", 200, columns=("number",)))
    index = json.loads((whole / "index.json").read_text())
    assert [shard["samples"] for shard in index["shards"]] == [20] * 10

    @cache
    def of_shards(count):
        found = shutil.copytree(whole, folder / str(count))
        (found / "index.json").write_text(json.dumps({**index, "shards": index["shards"][:count]}))
        return str(found)

    return SimpleNamespace(of_shards=of_shards, other=write(folder / "other", 40, first=1000, columns=("number",)))


@given(data=st.data())
def test_a_stream_goes_on_over_the_shards_of_then(streams, data):  # noqa: C901 - a job in one function, beside what it must do
    has_other, skips = data.draw(st.booleans()), data.draw(st.sampled_from([None, [{"samples": [3, 7]}]]))
    order = {
        "shuffle": data.draw(st.booleans()),
        "shuffle_algo": data.draw(st.sampled_from(["block", "py1e", "naive"])),
    }
    left_out = {1003, 1007} if has_other and skips else {3, 7} if skips else set()

    def made(count, num_ranks, state=None):
        found = []
        for rank in range(num_ranks):
            folders = [Stream(local=each) for each in (streams.other, streams.of_shards(count))[not has_other :]]
            world = World(1, num_ranks, 1, rank)
            options = {"streams": folders, "batch_size": 10 // num_ranks, "num_canonical_nodes": 1, "skip": skips}
            loader = StreamingDataLoader(StreamingDataset(**options, **order, world=world))
            if state is not None:
                loader.load_state_dict(state)
            found.append(loader)
        return found

    def step():
        nonlocal iterators
        iterators = iterators or [iter(loader) for loader in loaders]
        epoch = loaders[0].epoch
        for batch in [next(iterator, None) for iterator in iterators]:
            if batch is None:
                iterators = None
                return
            delivered.update((epoch, number) for number in batch["number"].tolist())

    delivered, begun, iterators = Counter(), {}, None
    count = data.draw(st.integers(1, 4))
    loaders = made(count, data.draw(st.sampled_from([1, 2, 5])))
    for _ in range(data.draw(st.integers(1, 3))):
        for _ in range(data.draw(st.integers(0, 16))):
            step()
        state = json.loads(json.dumps(loaders[0].state_dict()))
        for epoch in range(max((epoch for epoch, _ in delivered), default=-1) + 1):
            begun.setdefault(epoch, count)
        count, iterators = min(10, count + data.draw(st.integers(0, 3))), None
        loaders = made(count, data.draw(st.sampled_from([1, 2, 5])), state)
    while loaders[0].epoch < _NUM_EPOCHS:
        step()
    for epoch in range(loaders[0].epoch):
        whole = {*range(20 * begun.get(epoch, count)), *(range(1000, 1040) if has_other else ())}
        # All are multiples of ten, so that no rank needs a sample twice.
        expected = Counter((epoch, number) for number in whole - left_out)
        assert Counter({key: number for key, number in delivered.items() if key[0] == epoch}) == expected, epoch


class Rows:
    """A shard of a few numbers."""

    def __init__(self, key, count):
        self._first, self._count = 100 * int(key), count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        return self._first + range(self._count)[index]


def many_files(count, rank, num_ranks, **options):
    params = {f"{key:02}": ((key, 2 + key % 3), {}) for key in range(count)}
    return DistributedShardedDataset(Rows, params, rank=rank, world_size=num_ranks, prefetch=False, **options)


@given(st.integers(1, 3), st.booleans(), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=4))
def test_many_files_in_a_row_go_on_over_those_of_then(num_ranks, is_shuffled, runs):  # noqa: C901 - as above
    count, epoch, delivered, begun, states = 4, 0, Counter(), {}, None
    for num_steps, num_appended in [*runs, (200, 0)]:
        datasets = [many_files(count, rank, num_ranks, shuffle=is_shuffled) for rank in range(num_ranks)]
        samplers, iterators = [], None
        for rank, dataset in enumerate(datasets):
            if states is not None:
                dataset.load_state_dict(states[rank][0])
            samplers.append(ResumableSequentialSampler(dataset))
            if states is not None:
                samplers[-1].load_state_dict(states[rank][1])
        for _ in range(num_steps):
            if iterators is None:
                for dataset in datasets:
                    dataset.set_epoch(epoch)
                pairs = zip(datasets, samplers, strict=True)
                iterators = [iter(TorchDataLoader(dataset, sampler=sampler)) for dataset, sampler in pairs]
            delivered.update((epoch, int(number)) for iterator in iterators for number in next(iterator))
            if samplers[0].state_dict()["index"] == 0:
                iterators, epoch = None, epoch + 1
            if epoch == _NUM_EPOCHS:
                break
        states = [
            (dataset.state_dict(), sampler.state_dict()) for dataset, sampler in zip(datasets, samplers, strict=True)
        ]
        for each in range(states[0][0]["epoch"] + 1):
            begun.setdefault(each, count)
        count += num_appended
    for each in range(_NUM_EPOCHS):
        whole = Counter((each, 100 * key + index) for key in range(begun[each]) for index in range(2 + key % 3))
        found = Counter({key: number for key, number in delivered.items() if key[0] == each})
        assert found.total() == whole.total() // num_ranks * num_ranks
        assert found <= whole


def test_a_loader_of_many_files_in_a_row_goes_on_once_the_dataset_has_its_state():
    def made(count):
        dataset = many_files(count, 0, 1, shuffle=True)
        return dataset, DataLoader(dataset, 1, sampler=ResumableSequentialSampler(dataset))

    dataset, saver = made(4)
    for _ in zip(range(5), saver):  # noqa: B905 - five of them
        pass
    state, of_dataset = saver.state_dict(), dataset.state_dict()
    rest = [int(number) for number in made_again(saver, state)]
    grown, resumed = made(6)
    grown.load_state_dict(of_dataset)
    resumed.load_state_dict(state)
    assert [int(number) for number in resumed] == rest
    assert len([*resumed]) == 2 + 3 + 4 + 2 + 3 + 4


def made_again(loader, state):
    loader.load_state_dict(state)
    return [*loader]


def of_files(count, *, wrapped=lambda dataset: dataset, first=5, **options):
    return DataLoader(wrapped(Files([first, 5, 5, 5][:count])), 2, seed=1, **options)


def saved_after(loader, count):
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)
    return json.loads(
        json.dumps(loader.local_state_dict() if isinstance(loader, ShardedDataLoader) else loader.state_dict())
    )


def of_shards(shards, **options):
    return ShardedDataLoader(3, shards, microbatches_of, multiprocessing=False, **options)


def split(shards, num_ranks=2, rank=0):
    return of_shards(DistributedDataParallelShardSampler(shards, num_ranks, rank), dp_rank=rank)


class Backwards:
    """A view in another order than its files."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[len(self) - 1 - index]


#: What changed otherwise, or cannot be known to have grown: the loader that saves, and the one that is refused.
REFUSED = {
    "fewer shards": (partial(of_shards, ["0", "1", "2"]), partial(of_shards, ["0", "1"])),
    "other order": (partial(of_shards, ["0", "1"]), partial(of_shards, ["1", "0", "2"])),
    "in the middle": (partial(of_shards, ["0", "2"]), partial(of_shards, ["0", "1", "2"])),
    "one was replaced": (partial(of_shards, ["0", "1"]), partial(of_shards, ["0", "5", "2"])),
    "split, in the middle": (partial(split, ["0", "2"]), partial(split, ["0", "1", "2"])),
    "split, of one rank": (partial(split, ["0", "1"]), partial(split, ["0", "1", "2", "3"])),
    "fewer files": (partial(of_files, 3), partial(of_files, 2)),
    "other files": (partial(of_files, 2), partial(of_files, 4, first=6)),
    "shuffled fewer": (partial(of_files, 3, shuffle=True), partial(of_files, 2, shuffle=True)),
    "a subset": tuple(
        partial(of_files, count, wrapped=lambda dataset: Subset(dataset, range(1, len(dataset)))) for count in (2, 3)
    ),
    "another order of files": tuple(partial(of_files, count, wrapped=Backwards) for count in (2, 3)),
    "a part that is not the last": (
        partial(of_files, 2, wrapped=lambda dataset: ConcatDataset([dataset, Files([7])])),
        partial(of_files, 3, wrapped=lambda dataset: ConcatDataset([dataset, Files([7])])),
    ),
    "torch's shuffle": tuple(
        lambda count=count: DataLoader(files := Files([5] * count), 2, sampler=RandomSampler(files), seed=1)
        for count in (2, 3)
    ),
    "numbers without files": (partial(DataLoader, range(10), 2), partial(DataLoader, range(12), 2)),
    "packed": tuple(
        lambda count=count: DataLoader(PackedDataset([[1] * 4] * count, 8, lengths=[4] * count, seed=1), 1, seed=1)
        for count in (10, 12)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_changed_otherwise_is_refused(name):
    make, make_other = REFUSED[name]
    state = saved_after(make(), 1)
    other = make_other()
    with pytest.raises(StateMismatchError):
        made_again(other, state)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_stream_that_is_not_the_last_one_must_stay(streams, is_first):
    def made(count):
        folders = [Stream(local=streams.of_shards(count)), Stream(local=streams.other)]
        return StreamingDataLoader(StreamingDataset(streams=folders[:: 1 if is_first else -1], batch_size=5))

    state = saved_after(made(3), 2)
    if not is_first:
        made(5).load_state_dict(state)
        return
    with pytest.raises(StateMismatchError, match="shards"):
        made(5).load_state_dict(state)


@pytest.mark.parametrize("make", [partial(of_shards, ["0", "1", "2"]), partial(of_files, 3)])
def test_a_loader_whose_list_has_not_grown_has_no_field_of_it(make):
    assert "listed" not in json.dumps(saved_after(make(), 1))


def test_one_rank_in_the_epoch_after_a_change_of_ranks_says_nothing_of_its_list():
    ranks = ShardJob(4, 2, is_shuffled=False, drop_last=False)
    ranks.run(0, 1)
    ranks.resume(ranks.save(), 4, 1)
    ranks.finish(1)
    ranks.run(0, 1)  # the end of epoch 0
    ranks.run(0, 1)
    state, local = ranks.save(), json.loads(json.dumps(ranks.loaders[0].local_state_dict()))
    assert not [*state["resplits"]]
    for each, size in [(state, 4), (state, 6), (local, 4), (local, 6)]:
        resumed = split([str(shard) for shard in range(size)], num_ranks=1)
        resumed.load_state_dict(each)
        rest = [microbatch for shard in range(4) for microbatch in microbatches_of(str(shard))][1:]
        assert [*resumed] == rest
        assert [*resumed] == [microbatch for shard in range(size) for microbatch in microbatches_of(str(shard))]


@pytest.mark.parametrize(
    ("make", "make_grown", "noun"),
    [
        (partial(of_shards, ["0", "1"]), partial(of_shards, ["0", "1", "2"]), "1 shard"),
        (partial(of_files, 2), partial(of_files, 4), "10 samples"),
        (
            partial(of_files, 1, wrapped=lambda files: ConcatDataset([MapDataset(files, int)])),
            partial(of_files, 1, wrapped=lambda files: ConcatDataset([MapDataset(files, int), Files([7])])),
            "7 samples",
        ),
    ],
)
def test_the_log_says_how_much_was_appended_and_when_it_comes(make, make_grown, noun, caplog):
    saver, grown, begun = make(), make_grown(), saved_after(make(), 1)
    with caplog.at_level(logging.INFO, "fkat_data.plan.growth"):
        grown.load_state_dict(begun)
        between = saved_after(saver, sum(1 for _ in make()))
        grown.load_state_dict(between)
    first, second = [record.getMessage() for record in caplog.records if record.name == "fkat_data.plan.growth"]
    assert first.startswith(f"{noun} appended since the state was saved")
    assert first.endswith("epoch 1 is the first that has all")
    assert second == first
    assert len([*grown]) == len([*make_grown()])


def test_a_state_in_an_epoch_of_then_is_that_of_a_loader_which_has_not_grown():
    state = saved_after(of_files(2, shuffle=True), 2)
    grown, same = of_files(3, shuffle=True), of_files(2, shuffle=True)
    for loader in (grown, same):
        loader.load_state_dict(state)
        assert json.loads(json.dumps(loader.state_dict())) == state
    assert saved_after(grown, 2) == saved_after(same, 2)


def test_of_many_files_neighbours_share_a_number():
    for before, now in [(257, 300), (300, 301), (512, 513), (513, 1200), (255, 700)]:

        def made(count):
            return DataLoader(Files([1] * count), 50, seed=1, shuffle=True)

        saver = made(before)
        state = saved_after(saver, 2)
        resumed = made(now)
        resumed.load_state_dict(state)
        rest = [number for batch in resumed for number in batch.tolist()]
        assert rest == [number for batch in made_again(saver, state) for number in batch.tolist()]
        assert sum(len(batch) for batch in resumed) == now


RUN = """
import json, os, signal, sys
from pathlib import Path

from fkat_data import DataLoader, DataLoaderFactory, FsShardSampler, ShardedDataLoader, ShuffledShardSampler
from fkat_data.datasets import JsonDataset

kind, last, folder = sys.argv[1], int(sys.argv[2]), Path.cwd() / "data"
if kind == "shards":
    factory = DataLoaderFactory(JsonDataset, batch_size=2)
    loader = ShardedDataLoader(3, ShuffledShardSampler(FsShardSampler(folder)), factory, num_shard_prefetches=2)
else:
    loader = DataLoader(JsonDataset(sorted(folder.glob("*.jsonl"))), 2, shuffle=True, num_workers=2, seed=3)
checkpoint = Path("checkpoint.json")
if checkpoint.exists():
    loader.load_state_dict(json.loads(checkpoint.read_text()))
with open("ledger", "a") as ledger:
    while loader.epoch < 3:
        epoch = loader.epoch
        for count, batch in enumerate(loader, 1):
            print(json.dumps([epoch, [int(number) for number in batch["number"]]]), file=ledger, flush=True)
            Path("next.json").write_text(json.dumps(loader.local_state_dict()))
            Path("next.json").replace(checkpoint)
            last -= 1
            if not last:
                os.kill(os.getpid(), signal.SIGKILL)
loader.close()
"""


@pytest.mark.parametrize("kind", ["shards", "indices"])
def test_a_job_that_is_killed_goes_on_over_files_that_were_appended(kind, run_script, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()

    def append(numbers):
        for number in numbers:
            lines = [json.dumps({"number": 10 * number + row}) for row in range(3 + number % 2)]
            (folder / f"part-{number:03}.jsonl").write_text("\n".join(lines) + "\n")

    append(range(5))
    for num_appended, last in enumerate([4, 11, 0]):
        done = run_script(RUN, kind, str(last), check=False)
        assert done.returncode == (-9 if last else 0), done.stderr
        append(range(5 + num_appended, 6 + num_appended))
    delivered = Counter()
    for line in (tmp_path / "ledger").read_text().splitlines():
        epoch, numbers = json.loads(line)
        delivered.update((epoch, number) for number in numbers)
    # The first run ends in epoch 0, the second one in epoch 1.
    for epoch, num_files in enumerate([5, 6, 7]):
        whole = {10 * number + row for number in range(num_files) for row in range(3 + number % 2)}
        assert {number for of, number in delivered if of == epoch} == whole
    assert set(delivered.values()) == {1}
