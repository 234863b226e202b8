"""``len(loader)`` before the first epoch, and in each: as many microbatches as come."""

import functools
import json
import logging
import os
import signal
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from loader_examples import make
from patience import unless_held_up
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from walks import at_state, begun, gathered
from written_files import write_members, write_rows

from fkat_data import (
    ConfigurationError,
    DataLoaderFactory,
    DistributedDataParallelShardSampler,
    FsShardSampler,
    ShardedDataLoader,
    ShardNotFoundError,
    ShuffledShardSampler,
    WorkerDiedError,
    WorkerStalledError,
    item_generators,
)
from fkat_data.datasets import (
    IterableJsonDataset,
    IterableMapDataset,
    IterableParquetDataset,
    JsonDataset,
    MapDataset,
    PackedDataset,
    ParquetDataset,
    TarDataset,
    TokenBudgetBatchSampler,
)
from fkat_data.samplers import SequenceShardSampler
from fkat_data.storage.location import load_cached, save_cached

SIZES = (0, 1, 7, 12, 3, 5)
#: For torch refuses to draw from an empty dataset.
FULL_SIZES = SIZES[1:]


class Rows:
    """As many samples as the shard says."""

    def __init__(self, shard):
        names = [shard] if isinstance(shard, str) else shard
        self.count = sum(int(name) for name in names)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor(index)


class Stream(IterableDataset):
    def __init__(self, shard):
        self.count = int(shard)

    def __iter__(self):
        return iter(range(self.count))


class SizedStream(Stream):
    def __len__(self):
        return self.count


class EveryOther:
    """A batch sampler of a user's own."""

    def __init__(self, dataset):
        self.batches = [[index, index] for index in range(0, len(dataset), 2)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Lengths(Rows):
    """Documents whose lengths are drawn, so that their number of batches differs from epoch to epoch."""

    def __init__(self, shard):
        super().__init__(shard)
        self.lengths = torch.randint(1, 40, (self.count,)).tolist()

    def sort_key(self, index):
        return self.lengths[index]

    def __getitem__(self, index):
        return torch.zeros(self.lengths[index])


class Sampled(Rows):
    """Keeps a part of its samples, by the generators of its place."""

    def __init__(self, shard):
        super().__init__(shard)
        self.count = item_generators().python.randrange(self.count + 1)


def plain(samples):
    return samples


def identity(sample):
    return sample


def write_lines(path, word, size):
    path.write_text("".join(f"{json.dumps({word: index})}\n\n" for index in range(size)))


#: By suffix: what writes a file, and the datasets that read it by index and as a stream.
FORMATS = {
    "parquet": (write_rows, [ParquetDataset], [functools.partial(IterableParquetDataset, rows_at_once=3)]),
    "jsonl": (write_lines, [JsonDataset, MapDataset.over(JsonDataset, identity)], [IterableJsonDataset]),
    "tar": (write_members, [TarDataset], []),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for suffix, (write, *_) in FORMATS.items():
        made[suffix] = tmp_path_factory.mktemp(suffix)
        for number, size in enumerate(FULL_SIZES):
            write(made[suffix] / f"{number}-{size}.{suffix}", "a", size)
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def check(loader, num_epochs=3):
    """Each epoch is as long as it says, before it and in it, and after a resume in it."""
    lengths, saved = [], []
    for _ in range(num_epochs):
        length, number = len(loader), 0
        for number, _ in enumerate(loader, 1):
            if number < length:
                assert len(loader) == length
                saved.append((loader.local_state_dict(), length))
        assert length == number
        lengths.append(length)
    for state, length in saved[len(saved) // 2 :][:1]:
        loader.load_state_dict(state)
        assert len(loader) == length
        assert loader.step + len([None for _ in loader]) == length
    return lengths


def batchings():
    collate = functools.partial(DataLoader, collate_fn=plain)
    yield {"dataloader_generator": collate}
    for batch_size, drop_last in product((1, 5, 100), (False, True)):
        generate = functools.partial(collate, drop_last=drop_last)
        yield {"dataloader_generator": generate, "batch_size": batch_size}
        yield {"dataloader_generator": generate, "batch_size": batch_size, "sampler_generator": RandomSampler}
        batched = functools.partial(BatchSampler, batch_size=batch_size, drop_last=drop_last)
        yield {"dataloader_generator": collate, "batch_sampler_generator": batched, "sampler_generator": RandomSampler}
    twice = functools.partial(RandomSampler, replacement=True, num_samples=9)
    yield {"dataloader_generator": collate, "sampler_generator": twice, "batch_size": 4}
    yield {"dataloader_generator": collate, "sampler_generator": SequentialSampler, "batch_size": None}
    yield {"dataloader_generator": collate, "batch_sampler_generator": EveryOther}


def sampler(shards, dp_size, dp_rank):
    inner = ShuffledShardSampler(SequenceShardSampler(shards), seed=3)
    return DistributedDataParallelShardSampler(inner, dp_size=dp_size, dp_rank=dp_rank, drop_last=False)


@pytest.mark.long
@pytest.mark.parametrize("suffix", FORMATS)
def test_each_epoch_of_each_rank_is_as_long_as_it_says(folders, suffix, some):
    _, by_index, streams = FORMATS[suffix]
    without_sampler = [options for options in batchings() if not any("sampler" in name for name in options)]
    for generator, options in some([*product(by_index, batchings()), *product(streams, without_sampler)], 12):
        for dp_size, dp_rank in ((1, 0), (2, 0), (2, 1)):
            shards = sampler([str(path) for path in sorted(folders[suffix].iterdir())], dp_size, dp_rank)
            loader = make(shards, DataLoaderFactory(generator, **options))
            if len(loader) > 1:
                check(loader, 2)


def test_it_says_so_without_opening_a_shard_of_files(folders, cache):
    for suffix, (_, generators, _) in FORMATS.items():
        shards = FsShardSampler(folders[suffix], num_uri_merge=2)
        factory = DataLoaderFactory(generators[0], RandomSampler, batch_size=4)
        sizes = [[int(Path(name).stem.split("-")[1]) for name in shard] for shard in shards.shards(0)]
        assert factory.lengths_without_opening(shards.shards(0)) == [-(-sum(group) // 4) for group in sizes]
    assert (cache / "fkat_data" / "counts").is_dir() or not cache.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"dataset_generator": Rows, "batch_size": 4},
        {"dataset_generator": SizedStream, "batch_size": 4},
        {"dataset_generator": Rows, "batch_sampler_generator": EveryOther},
        {"dataset_generator": Rows, "dataloader_generator": lambda dataset, **_: [[1]] * len(dataset)},
        {"dataset_generator": Stream, "batch_size": 4, "shard_sizes": int},
        {"dataset_generator": Stream, "batch_size": 4, "shard_sizes": {str(size): size for size in SIZES}},
    ],
    ids=["rows", "sized stream", "batch sampler", "own loader", "sizes by function", "sizes by shard"],
)
def test_anything_with_a_length_is_opened_to_be_counted(options):
    state = torch.get_rng_state()
    loader = make([str(size) for size in SIZES], DataLoaderFactory(**options))
    assert len(loader) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert len(set(check(loader))) == 1


DRAWN = [
    {
        "dataset_generator": Lengths,
        "batch_sampler_generator": functools.partial(TokenBudgetBatchSampler, max_tokens=64),
        "dataloader_generator": functools.partial(DataLoader, collate_fn=plain),
    },
    {
        "dataset_generator": lambda shard: PackedDataset(Lengths(shard), sequence_length=41),
        "dataloader_generator": functools.partial(DataLoader, collate_fn=plain),
        "batch_size": 2,
    },
    {"dataset_generator": Sampled, "batch_size": 2},
]


@pytest.mark.parametrize("options", DRAWN, ids=["budget", "packed", "sampled"])
def test_what_is_drawn_in_each_epoch_is_counted_in_each_epoch(options):
    shards = ["50", "70", "60", "50"]
    assert len(set(check(make(shards, DataLoaderFactory(**options)), 4))) > 1


def test_a_length_that_is_drawn_goes_on_with_another_number_of_ranks():
    factory = DataLoaderFactory(**DRAWN[2])
    shards = [str(size) for size in range(20, 90, 10)]
    whole = [make(sampler(shards, 2, rank), factory) for rank in range(2)]
    for loader, count in zip(whole, (9, 20), strict=True):
        begun(loader, count)
    state = gathered(whole)
    for rank in range(3):
        loader = at_state(make(sampler(shards, 3, rank), factory), state)
        length = len(loader)
        assert loader.step == 20
        assert 20 + len([None for _ in loader]) == length
        assert length == 20 or len(loader) != 0


def test_a_group_of_shards_has_the_sizes_of_its_members():
    factory = DataLoaderFactory(Rows, batch_size=4, shard_sizes={"1": 1, "6": 6})
    assert factory.lengths_without_opening([["1", "6"], "6", "5", ["5", "6"]]) == [2, 2, None, None]
    assert check(make([["1", "6"], "5", "6"], factory))[0] == 6


@pytest.mark.parametrize("sizes", [{"a": -1}, {"a": "1"}, {"a": None}, lambda shard: -1, lambda shard: None])
def test_a_size_is_a_number_of_samples(sizes):
    with pytest.raises(ConfigurationError, match="shard_sizes"):
        len(make(["a"], DataLoaderFactory(Rows, shard_sizes=sizes)))
    with pytest.raises(ConfigurationError, match="shard_sizes"):
        DataLoaderFactory(Rows, shard_sizes=5)


def unknown(error):
    return pytest.raises(TypeError, match=f"not known before shard '\\d' was read to its end: {error}.*shard_sizes=")


def test_where_it_is_not_known_the_message_says_what_to_pass():
    loader = make(["2", "3"], DataLoaderFactory(Stream))
    with unknown("object of type 'Stream' has no len()"):
        len(loader)
    assert len(list(loader)) == len(loader) == 5  # list asks for the length, too
    nested = functools.partial(DataLoader, num_workers=2)
    with unknown("each of the DataLoader's 2 workers"):
        len(make(["2", "3"], DataLoaderFactory(SizedStream, dataloader_generator=nested, shard_sizes=int)))
    endless = DataLoaderFactory(Rows, batch_sampler_generator=lambda dataset: ([0] for _ in dataset))
    with unknown("object of type 'generator' has no len()"):
        len(make(["2", "3"], endless))
    with pytest.raises(TypeError, match=r"the factory does not say; give .*pass a factory with num_microbatches"):
        len(make(["2"], lambda shard: [[1]]))


def test_each_shard_is_opened_once_to_be_counted():
    opened = []

    def open_rows(shard):
        opened.append(shard)
        return Rows(shard)

    loader = make(["2", "3", "2"], DataLoaderFactory(open_rows))
    assert len(loader) == 7
    assert sorted(opened) == ["2", "2", "3"] or sorted(opened) == ["2", "3"]
    for _ in loader:
        pass
    del opened[:]
    assert len(loader) == 7
    assert opened == []


class Missing(Rows):
    """Refuses some shards."""

    def __init__(self, shard):
        if shard == "gone":
            raise ShardNotFoundError(shard, "no such file")
        super().__init__(shard)


def test_a_shard_that_cannot_be_opened_raises_or_counts_as_empty(caplog):
    factory = DataLoaderFactory(Missing, batch_size=2)
    with pytest.raises(ShardNotFoundError) as raised:
        len(make(["3", "gone", "4"], factory))
    assert "while opening shard 'gone'" in raised.value.__notes__[0]
    loader = make(["3", "gone", "4"], factory, on_shard_error="skip")
    assert len(loader) == 4
    assert "'gone' cannot be opened and counts as empty" in caplog.text
    assert len([None for _ in loader]) == 4


# --- what is kept ------------------------------------------------------------------------------------------------


def old(path):
    """A file that was not changed just now."""
    os.utime(path, (1e9, 1e9))


@pytest.fixture
def path(tmp_path):
    """A file of three lines."""
    path = tmp_path / "a.jsonl"
    write_lines(path, "a", 3)
    old(path)
    return path


def kept_file(cache):
    (path,) = (cache / "fkat_data" / "counts").iterdir()
    return path


def test_counts_are_kept_until_the_file_changes(path, cache):
    factory = DataLoaderFactory(JsonDataset)
    assert len(make([str(path)], factory)) == 3
    wrong = {"json lines a.jsonl": (load_cached(kept_file(cache), 2)[1]["json lines a.jsonl"][0], 30)}
    save_cached(kept_file(cache), 2, wrong)
    assert len(make([str(path)], factory)) == 30  # it is read from there
    for change in (lambda: write_lines(path, "a", 4), lambda: os.utime(path, (2e9 - 1e9, 5)), path.unlink):
        change()
        if not path.exists():
            write_lines(path, "a", 4)
        old(path)
        save_cached(kept_file(cache), 2, wrong)
        assert len(make([str(path)], factory)) == 4
    assert load_cached(kept_file(cache), 2)[1]["json lines a.jsonl"][1] == 4


def test_a_file_that_has_changed_just_now_is_counted_each_time(tmp_path, cache):
    write_lines(tmp_path / "a.jsonl", "a", 3)
    assert len(make([str(tmp_path / "a.jsonl")], DataLoaderFactory(JsonDataset))) == 3
    assert not cache.exists()


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", '{"version": 2, "digest": ""}\n{}', "\x00"])
def test_a_file_of_counts_that_is_torn_is_made_again(path, cache, content):
    assert len(make([str(path)], DataLoaderFactory(JsonDataset))) == 3
    kept_file(cache).write_text(content)
    assert len(make([str(path)], DataLoaderFactory(JsonDataset))) == 3
    assert load_cached(kept_file(cache), 2)[1]["json lines a.jsonl"][1] == 3


def test_counts_that_cannot_be_kept_are_no_error(path, cache):
    cache.write_text("a file")
    assert len(make([str(path)], DataLoaderFactory(JsonDataset))) == 3


@pytest.mark.parametrize(("scheme", "is_kept"), [("local", True), ("memory", False)])
def test_a_file_of_a_store_is_counted_again_when_its_version_changes(tmp_path, cache, scheme, is_kept):
    """A store that names no version, such as fsspec's memory, has its files counted each time."""
    import fsspec

    uri = f"{scheme}://{tmp_path}/a.jsonl"
    for size in (3, 4):
        with fsspec.open(uri, "w") as file:
            file.write("1\n" * size)
        if is_kept:
            os.utime(tmp_path / "a.jsonl", (1e9, 1e9 + size))
        for _ in range(2):
            assert len(make([uri], DataLoaderFactory(JsonDataset))) == size
        assert cache.exists() == is_kept
        if is_kept:
            assert load_cached(kept_file(cache), 2)[1]["json lines a.jsonl"][1] == size


def test_a_subclass_of_a_dataset_is_opened():
    class Half(JsonDataset):
        def __len__(self):
            return super().__len__() // 2

    class Twice(IterableMapDataset):
        pass

    for generator in (Half, functools.partial(Half, max_line_bytes=9), Twice.over(IterableJsonDataset, identity)):
        assert DataLoaderFactory(generator).lengths_without_opening(["a", "b"]) == [None, None]


# --- callers that read the length once ---------------------------------------------------------------------------


def test_a_caller_that_cuts_an_epoch_at_the_length_of_another_is_warned(caplog):
    caplog.set_level(logging.WARNING)
    loader = make(sampler(["4", "9"], 2, 0), DataLoaderFactory(Rows))
    lengths = []
    for _ in range(6):
        lengths.append(len(loader))
        for number, _ in enumerate(loader, 1):
            if number == lengths[0]:
                break
    cut = [epoch for epoch, length in enumerate(lengths[:-1]) if length > lengths[0]]
    assert len(set(lengths)) == 2, lengths
    assert [record.args[0] for record in caplog.records if "was left after" in record.message] == cut


# --- in workers --------------------------------------------------------------------------------------------------


class InWorker(Rows):
    """Must not be opened in the trainer."""

    def __init__(self, trainer_pid, shard):
        assert os.getpid() != trainer_pid
        super().__init__(shard)


class Deadly(Rows):
    def __init__(self, shard):
        super().__init__(shard)
        if self.count == 9:
            os.kill(os.getpid(), signal.SIGKILL)


def test_workers_open_the_shards_and_end(processes):
    shards = [str(size) for size in range(1, 20)]
    factory = DataLoaderFactory(functools.partial(InWorker, os.getpid()), RandomSampler, batch_size=4)
    with ShardedDataLoader(7, shards, factory) as loader:
        iterator = begun(loader, 1)
        length = len(loader)
        assert 1 + len([None for _ in iterator]) == length == len(loader)
    with (
        ShardedDataLoader(7, shards, DataLoaderFactory(Deadly)) as loader,
        pytest.raises(WorkerDiedError, match="shard '9'"),
    ):
        len(loader)


class SlowRows(Rows):
    def __init__(self, shard):
        super().__init__(shard)
        time.sleep(600 if shard == "9" else 0)


@unless_held_up
def test_a_shard_that_hangs_while_it_is_counted_is_reported_and_then_an_error(processes, caplog):
    factory = DataLoaderFactory(SlowRows, batch_size=4)
    options = {"stall_warning_s": 0.5, "stall_timeout_s": 10}  # a worker begins by importing this module
    with (
        ShardedDataLoader(0, ["3", "9"], factory, **options) as loader,
        pytest.raises(WorkerStalledError, match=r"shard '9'(.|\n)*in __init__"),
    ):
        len(loader)
    assert "shard '9'" in caplog.text
    with ShardedDataLoader(0, ["3", "4"], DataLoaderFactory(SlowRows, batch_size=4)) as loader:
        assert len(loader) == len(list(loader)) == 2


@pytest.mark.parametrize("order", ["length first", "length after the epoch"])
def test_a_wrong_size_is_named_at_the_shards_end_and_corrected(order, caplog):
    factory = DataLoaderFactory(Stream, batch_size=4, shard_sizes={"3": 3, "6": 60, "9": 1})
    with make(["3", "6", "9"], factory) as loader:
        if order == "length first":
            assert len(loader) == 1 + 15 + 1
        assert sum(len(microbatch) for microbatch in loader) == 18
        if order == "length first":
            assert [line.split(":")[0] for line in caplog.messages] == [
                "shard '6' has 2 microbatches, and shard_sizes says 15",
                "shard '9' has 3 microbatches, and shard_sizes says 1",
            ]
        assert len(loader) == 1 + 2 + 3
        assert len(caplog.messages) == 2
        for _ in loader:
            pass
        assert len(caplog.messages) == 2
