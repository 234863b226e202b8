"""Loaders of every face and kind that random walks go through."""

import atexit
import shutil
import tempfile
from functools import partial

from face import Face
from loader_model import MixtureModel, StreamModel
from map_style_faces import (
    STRATEGIES,
    Budgeted,
    Dealt,
    DictSampled,
    InOrder,
    OfOneRank,
    Packed,
    Sampled,
    Shuffled,
    ShuffledByDrawnSeed,
    ShuffledByGenerator,
    Skipping,
    Sorted,
    Unbatched,
    Windowed,
    counts_of_rows,
    strategy_of,
)
from walk_data import FAULT, Items, RememberingItems, Rows, Shards, as_list, list_after_check, of_items, opened

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader, ShuffledShardSampler
from fkat_data.mixing import DictDataLoader
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset


class Iterable(Face):
    """An iterable dataset."""

    has_length = False

    @classmethod
    def drawn(cls, rng):
        return {
            "count": rng.randint(1, 14),
            "size": rng.choice([None, 1, 2, 3]),
            "form": rng.choice(["generator", "iterator with a state", "dataset with a state"]),
            "every": rng.choice([1, 1, 2, 3, 0]),
        }

    def __init__(self, kind, config):
        super().__init__(kind, config)
        # Else it says, too, of which microbatch before there is a state of the dataset.
        self.has_one_state = config["every"] == 1 and config["form"] != "dataset with a state"

    def takes(self, how):
        return False  # the number of workers decides on the order

    def dataset_of(self, count, form):
        return RememberingItems(count) if form == "dataset with a state" else Items(count, form)

    def build(self, count, size, form, every, **how):
        return DataLoader(self.dataset_of(count, form), size, seed=3, snapshot_every_n_steps=every, **how)


class Strands(Iterable):
    """An iterable dataset that workers divide; a loader with other workers goes on with as many strands."""

    def make(self, num_workers=None, max_worker_restarts=99, **how):
        num_workers = num_workers or self.config["strands"]
        return super().make(num_workers=num_workers, max_worker_restarts=max_worker_restarts, **how)

    @classmethod
    def drawn(cls, rng):
        return {**super().drawn(rng), "strands": rng.randint(1, 3)}

    def takes(self, how):
        return how.get("workers") != "threads"

    def build(self, strands, **given):
        return super().build(**given)

    def reference(self):
        found = super().reference()
        draws = [number for number in numbers_in(self.runs[-1].epochs[0]) if isinstance(number, float)]
        assert len({*draws}) == len(draws)  # no worker draws what another one does
        return found


def numbers_in(value):
    return [each for inner in value for each in numbers_in(inner)] if isinstance(value, list | tuple) else [value]


class WindowedIterable(Iterable):
    knows_end_always = False
    goes_on_behind_end = True

    @classmethod
    def drawn(cls, rng):
        found = super().drawn(rng)
        return {**found, "counts": counts_of_rows(rng, found["count"]), "window": rng.randint(1, 5)}

    def build(self, count, size, form, every, counts, window, **how):
        return DataLoader(
            self.dataset_of(count, form),
            size,
            seed=3,
            snapshot_every_n_steps=every,
            window_fn=Rows(counts),
            window_size=window,
            collate_fn=as_list,
            **how,
        )


_WRITTEN = {}


def written(count):
    """Return a folder with a dataset of so many numbers in shards of five."""
    if count not in _WRITTEN:
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        with MDSWriter(out=folder, columns={"number": "int"}, size_limit=64 + 5 * 12) as writer:
            for number in range(count):
                writer.write({"number": number})
        _WRITTEN[count] = folder
    return _WRITTEN[count]


class Streamed(Face):
    """A stream in torch's interface."""

    loader_type = DataLoader

    @classmethod
    def drawn(cls, rng):
        return {
            "count": rng.randint(1, 17),
            "size": rng.randint(1, 4),
            "shuffle": rng.random() < 0.7,
            "algorithm": rng.choice(["py1e", "py1s", "block", "naive"]),
            "drop_last": rng.random() < 0.2,
        }

    def build(self, count, size, shuffle, algorithm, drop_last, **how):
        count = max(count, size) if drop_last else count
        dataset = StreamingDataset(
            local=written(count), batch_size=size, shuffle=shuffle, shuffle_algo=algorithm, shuffle_seed=5
        )
        return self.loader_type(dataset, size, drop_last=drop_last, collate_fn=partial(list_after_check, FAULT), **how)


class StreamedByItsOwn(Streamed):
    model_type = StreamModel
    loader_type = StreamingDataLoader


class WindowedStream(Face):
    knows_end_always = False
    goes_on_behind_end = True
    has_length = False
    loader_type = DataLoader

    @classmethod
    def drawn(cls, rng):
        count = rng.randint(1, 17)
        return {
            "count": count,
            "counts": counts_of_rows(rng, count),
            "size": rng.randint(1, 4),
            "window": rng.randint(1, 6),
            "shuffle": rng.random() < 0.7,
        }

    def build(self, count, counts, size, window, shuffle, **how):
        dataset = StreamingDataset(local=written(count), shuffle=shuffle, shuffle_seed=5, batch_size=size)
        return self.loader_type(
            dataset,
            size,
            window_fn=Rows(counts),
            window_size=window,
            collate_fn=partial(list_after_check, FAULT),
            **how,
        )


class WindowedStreamByItsOwn(WindowedStream):
    loader_type = StreamingDataLoader


class Sharded(Face):
    """Shards of all kinds, empty ones anywhere."""

    factory = staticmethod(opened)
    goes_on_behind_end = True
    copies = False
    has_length = False

    @classmethod
    def drawn(cls, rng):
        kinds = rng.choice([["map", "list"], ["map", "stream", "list", "generator", "skip"]])
        sizes = [rng.choice([0, 0, 1, 2, 3, 5]) for _ in range(rng.randint(1, 6))]
        if not any(sizes):
            sizes[rng.randrange(len(sizes))] = 2
        names = [f"{rng.choice(kinds)}-{place}-{size}" for place, size in enumerate(sizes)]
        return {"names": names, "order": rng.choice(["list", "shuffled", "own"])}

    def shards(self, names, order):
        return {"list": list, "shuffled": lambda names: ShuffledShardSampler(names, 3), "own": Shards}[order](names)

    def knows_end(self, position):
        """Not where the epoch before ends with shards that turn out to be empty."""
        order = self.shards(**self.config)
        shards = order if isinstance(order, list) else order.shards(max(0, position[0] - 1))
        _, _, count = shards[-1].split("-")
        return count != "0"

    def build(self, names, order, num_workers=0, prefetch_factor=-1, **how):
        how["multiprocessing"] = bool(num_workers)
        return ShardedDataLoader(7, self.shards(names, order), self.factory, num_workers, prefetch_factor, **how)


class ShardedByThreads(Sharded):
    """Shards of samples, which threads make too."""

    factory = DataLoaderFactory(of_items, batch_size=2)

    @classmethod
    def drawn(cls, rng):
        found = super().drawn(rng)
        return {**found, "names": [f"map-{name.split('-', 1)[1]}" for name in found["names"]]}


class Mixed(Face):
    """A mixture of loaders of the kinds above."""

    knows_end_always = False
    goes_on_behind_end = True
    has_length = has_one_state = False
    parts = ("in order", "sampler", "iterable", "ShardedDataLoader", "StreamingDataLoader", "window_fn")

    @classmethod
    def drawn(cls, rng):
        kinds = [rng.choice(cls.parts) for _ in range(rng.randint(1, 3))]
        return {
            "parts": [(kind, KINDS[kind].fit(KINDS[kind].drawn(rng))) for kind in kinds],
            "strategy": rng.choice(STRATEGIES),
            "on_exhausted": rng.choice(["drop", "restart", "stop"]),
        }

    @property
    def copies(self):
        return all(face.copies for face in self.faces().values())

    def faces(self):
        return {f"s{place}": face_of(*part) for place, part in enumerate(self.config["parts"])}

    def strategy(self):
        return strategy_of(self.config["strategy"], [*self.faces()])

    def make(self, **how):
        sources = {name: face.make(**how) for name, face in self.faces().items()}
        return DictDataLoader(sources, self.strategy(), None, on_exhausted=self.config["on_exhausted"])

    def takes(self, how):
        return all(face.takes(how) for face in self.faces().values())

    def reference(self):
        tables, models = {}, {}
        for name, face in self.faces().items():
            tables[name], models[name] = face.reference()
            self.runs += face.runs

        def microbatch(at):
            name, of_source = at
            return [name, tables[name](of_source)]

        return microbatch, MixtureModel(models, self.strategy(), self.config["on_exhausted"])


KINDS = {
    "in order": InOrder,
    "shuffle=True": Shuffled,
    "shuffle=True, a drawn seed": ShuffledByDrawnSeed,
    "shuffle=True, a generator": ShuffledByGenerator,
    "sampler": Sampled,
    "DistributedSampler": OfOneRank,
    "deal_out": Dealt,
    "TokenBudgetBatchSampler": Budgeted,
    "DictBatchSampler": DictSampled,
    "batch_size=None": Unbatched,
    "PackedDataset": Packed,
    "BufferSortedDataset": Sorted,
    "window_fn": Windowed,
    "on_sample_error": Skipping,
    "iterable": Iterable,
    "iterable, window_fn": WindowedIterable,
    "iterable, strands": Strands,
    "stream": Streamed,
    "StreamingDataLoader": StreamedByItsOwn,
    "stream, window_fn": WindowedStream,
    "StreamingDataLoader, window_fn": WindowedStreamByItsOwn,
    "ShardedDataLoader": Sharded,
    "ShardedDataLoader, map-style": ShardedByThreads,
    "DictDataLoader": Mixed,
}


def face_of(kind, config):
    """Return a face as a failing walk has printed it."""
    return KINDS[kind](kind, config)
