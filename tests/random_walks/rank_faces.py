"""Loaders of ranks that random chains of jobs go through; all ranks are in this process."""

from collections import Counter

from loader_examples import plain
from loader_faces import written
from map_style_faces import SAMPLERS, STRATEGIES, counts_of_rows, strategy_of
from torch.utils.data import BatchSampler, DistributedSampler
from walk_data import Documents, Items, Rows, Samples, as_list, opened

from fkat_data import DataLoader, DistributedDataParallelShardSampler, ShardedDataLoader, ShuffledShardSampler
from fkat_data.datasets import PackedDataset, TokenBudgetBatchSampler
from fkat_data.mixing import DictDataLoader
from fkat_data.streaming import StreamingDataLoader, StreamingDataset, World

MOST_RANKS = 4


class RankFace:
    """The loaders of a job's ranks.

    Attributes:
        is_in_step: Whether all ranks are asked equally often, as a trainer's ranks are.
        has_fill: Whether the last round may repeat samples.
        is_compared: Whether a rank's part of an epoch depends on nothing but the number of ranks that began it.
        has_one_state: Whether a state does not say in two ways that an epoch is over.
        has_epochs: Whether an epoch's order depends on nothing that was delivered before.
        refills: Whether a resume may fill up the last round with other samples, as streams in MosaicML's orders do.
        fills_early: Whether a last round, which is filled up, may come before the epoch's end: that of a source.
        steps_are_strands: Whether other ranks begin at what was delivered of their strands, not at the largest step.
        leaves_empty_rest: Whether the loop after a load is empty, where an epoch had nothing left.
        may_drop: Last rounds of which samples may be left out: True is one.
        parts_of: Ranks whose parts stay, whatever ranks follow; None: each epoch is dealt out to those that begin it.
    """

    is_in_step = True
    has_fill = may_drop = refills = fills_early = leaves_empty_rest = steps_are_strands = False
    has_epochs = is_compared = has_one_state = True
    before_loop = parts_of = None
    most_ranks = MOST_RANKS

    def __init__(self, kind, config):
        self.kind, self.config = kind, config

    def make(self, num_ranks, rank):
        return self.build(num_ranks, rank, **self.config)

    def items(self, microbatch):
        """Return what a microbatch has, each of which is to come once."""
        return [int(sample[0]) for sample in microbatch]

    def whole(self, run):
        """Return what an epoch has: of a run of the ranks that began it, which nothing disturbs."""
        del run
        return Counter(range(self.config["count"]))

    def round_size(self, num_ranks):
        """Return how many samples the ranks get at once."""
        return num_ranks * (self.config["size"] or 1)


class Dealt(RankFace):
    """Batches that ``deal_out`` gives to ranks."""

    @classmethod
    def drawn(cls, rng):
        kinds = ["in order", "shuffle", "items", "RandomSampler, generator", "backwards", "batches", "remembering"]
        return {
            # Where an epoch is left, torch's RandomSampler has moved its generator as far as the loader has drawn: all
            # of up to 32 batches, after which its next order is that of an uninterrupted run.
            "count": rng.randint(MOST_RANKS, 31),
            "size": rng.randint(1, 4),
            "order": rng.choice(kinds),
            "even_batches": rng.random() < 0.6,
            "drop_last": rng.random() < 0.2,
        }

    def __init__(self, kind, config):
        super().__init__(kind, config)
        self.is_in_step = config["even_batches"]
        self.has_fill = config["even_batches"]
        # A batch sampler leaves some out, and a change of ranks a part of what was left of its batches.
        is_computed = config["order"] in ("in order", "shuffle", "items")
        self.may_drop = config["drop_last"] * (1 if is_computed else 2)

    def build(self, num_ranks, rank, count, size, order, even_batches, drop_last, *, split_batches=False):
        given = {"batch_size": size, "drop_last": drop_last}
        if order in SAMPLERS:
            given["sampler"] = SAMPLERS[order](count)
        elif order == "batches":
            given = {"batch_sampler": BatchSampler(range(count), size, drop_last)}
        elif order == "items":
            given = {"batch_size": None, "shuffle": True}
        else:
            given["shuffle"] = order == "shuffle"
        loader = DataLoader(Samples(count), seed=7, collate_fn=as_samples, **given)
        loader.deal_out(num_ranks, rank, even_batches=even_batches, split_batches=split_batches)
        return loader


class Split(Dealt):
    """Batches of which each rank gets a part."""

    @classmethod
    def drawn(cls, rng):
        orders = ["in order", "shuffle", "RandomSampler, generator", "backwards", "batches"]
        return {**super().drawn(rng), "count": rng.randint(MOST_RANKS, 60), "size": 12, "order": rng.choice(orders)}

    def build(self, num_ranks, rank, even_batches, **given):
        return super().build(num_ranks, rank, even_batches=even_batches, split_batches=num_ranks > 1, **given)

    def round_size(self, num_ranks):
        return self.config["size"]


def as_samples(samples):
    """Return a list of samples, of one too."""
    return samples if isinstance(samples, list) else [samples]


def as_one(sample):
    return [sample]


class OfTorchsRanks(RankFace):
    """Samples that a DistributedSampler gives to ranks."""

    has_fill = True

    @staticmethod
    def before_loop(loader, epoch):
        loader.sampler.set_epoch(epoch)

    @classmethod
    def drawn(cls, rng):
        return {"count": rng.randint(MOST_RANKS, 50), "size": rng.randint(1, 4), "shuffle": rng.random() < 0.5}

    def build(self, num_ranks, rank, count, size, shuffle):
        sampler = DistributedSampler(range(count), num_ranks, rank, shuffle=shuffle, seed=4)
        return DataLoader(Samples(count), size, sampler=sampler, seed=7, collate_fn=as_list)


class BudgetOfRanks(RankFace):
    may_drop = True

    @classmethod
    def drawn(cls, rng):
        return {"count": rng.randint(8, 60), "size": rng.randint(13, 60), "window": rng.randint(MOST_RANKS, 30)}

    def build(self, num_ranks, rank, count, size, window):
        samples = Samples(count)
        order = TokenBudgetBatchSampler(samples, size, window, rank=rank, world_size=num_ranks, seed=3)
        return DataLoader(samples, batch_sampler=order, seed=7, collate_fn=as_list)

    def round_size(self, num_ranks):
        """Only where too few are left to halve: then a batch has one sample."""
        return num_ranks


class PackedOfRanks(BudgetOfRanks):
    @classmethod
    def drawn(cls, rng):
        return {"count": rng.randint(8, 60), "size": rng.randint(1, 3), "window": rng.randint(MOST_RANKS, 30)}

    def build(self, num_ranks, rank, count, size, window):
        packed = PackedDataset(Documents(count), 16, window, rank=rank, world_size=num_ranks, seed=3)
        return DataLoader(packed, size, seed=7, collate_fn=as_list)

    def items(self, microbatch):
        found = []
        for sequence in microbatch:
            tokens = sequence["tokens"][(sequence["document_ids"] >= 0) & (sequence["position_ids"] == 0)]
            found += [int(token) // 100 for token in tokens]
        return found


class WindowsOfRanks(RankFace):
    """Rows of windows that are dealt out."""

    is_in_step = False

    @classmethod
    def drawn(cls, rng):
        count = rng.randint(MOST_RANKS, 30)
        return {
            "count": count,
            "counts": counts_of_rows(rng, count),
            "size": rng.choice([None, 1, 2, 3]),
            "window": rng.randint(1, count // MOST_RANKS),
            "order": rng.choice(["in order", "shuffle", "backwards", "RandomSampler, generator"]),
        }

    def build(self, num_ranks, rank, count, counts, size, window, order):
        given = {"sampler": SAMPLERS[order](count)} if order in SAMPLERS else {"shuffle": order == "shuffle"}
        loader = DataLoader(
            Samples(count), size, seed=3, window_fn=Rows(counts), window_size=window, collate_fn=as_rows, **given
        )
        loader.deal_out(num_ranks, rank)
        return loader

    def items(self, microbatch):
        return [number_of(row) for row in microbatch]

    def whole(self, run):
        counts = self.config["counts"]
        return Counter((number, row) for number in range(self.config["count"]) for row in range(counts[number]))


class SkippingRanks(RankFace):
    """Samples that cannot be read are left out."""

    is_in_step = False

    @classmethod
    def drawn(cls, rng):
        count = rng.randint(MOST_RANKS, 30)
        return {
            "count": count,
            "bad": rng.sample(range(count), rng.randint(0, count // 2)),
            "size": rng.choice([None, 1, 2, 3]),
            "window": rng.randint(1, count // MOST_RANKS),
            "shuffle": rng.random() < 0.5,
        }

    def build(self, num_ranks, rank, count, bad, size, window, shuffle):
        samples = Samples(count, frozenset(bad))
        how = {"shuffle": shuffle, "on_sample_error": "skip", "window_size": window}
        loader = DataLoader(samples, size, seed=3, collate_fn=as_list if size else as_one, **how)
        loader.deal_out(num_ranks, rank)
        return loader

    def whole(self, run):
        return Counter({*range(self.config["count"])} - {*self.config["bad"]})


def as_rows(rows):
    return rows if isinstance(rows, list) else [rows]


def number_of(row):
    index, sample, _ = row
    return int(sample["number"] if isinstance(sample, dict) else sample[0]), index


class StrandsOfRanks(RankFace):
    """Strands of an iterable dataset, which the workers of all ranks divide; other ranks take them over."""

    is_in_step = False
    steps_are_strands = True
    parts_of = 2

    @classmethod
    def drawn(cls, rng):
        forms = ["generator", "iterator with a state"]
        # Two ranks begin: their strands are enough for four.
        return {"count": rng.randint(0, 40), "size": rng.randint(1, 3), "form": rng.choice(forms), "num_workers": 2}

    def build(self, num_ranks, rank, count, size, form, num_workers):
        items = Items(count, form)
        items.counts_workers_of_all_ranks = True
        loader = DataLoader(items, size, seed=3, num_workers=num_workers, collate_fn=as_list)
        loader.deal_out(num_ranks, rank)
        return loader

    def items(self, microbatch):
        """Samples with their draws, which no change of the number of ranks changes, and no two samples share."""
        return [tuple(sample) for sample in microbatch]

    def whole(self, run):
        assert all(len({*draws}) == len(run) for draws in zip(*run, strict=True))
        return Counter(run)


class StreamsOfRanks(RankFace):
    """One global order, of which each rank reads its part: global batches of one size."""

    has_fill = True

    def __init__(self, kind, config):
        super().__init__(kind, config)
        self.leaves_empty_rest = config["is_own"]
        self.refills = config["algorithm"] != "block"

    @classmethod
    def drawn(cls, rng):
        return {
            "count": rng.randint(MOST_RANKS, 70),
            "size": 12,
            "shuffle": rng.random() < 0.7,
            "algorithm": rng.choice(["py1e", "py1s", "block", "naive"]),
            "is_own": rng.random() < 0.5,
        }

    def build(self, num_ranks, rank, count, size, shuffle, algorithm, is_own):
        dataset = StreamingDataset(
            local=written(count),
            batch_size=size // num_ranks,
            shuffle=shuffle,
            shuffle_algo=algorithm,
            shuffle_seed=5,
            num_canonical_nodes=2,
            world=World(1, num_ranks, 1, rank),
        )
        return (StreamingDataLoader if is_own else DataLoader)(dataset, size // num_ranks, collate_fn=as_list)

    def items(self, microbatch):
        return [sample["number"] for sample in microbatch]

    def round_size(self, num_ranks):
        return self.config["size"]


class WindowsOfStreams(WindowsOfRanks):
    @classmethod
    def drawn(cls, rng):
        order = rng.choice(["in order", "shuffle"])
        return {**super().drawn(rng), "size": rng.randint(1, 3), "order": order, "is_own": rng.random() < 0.5}

    def build(self, num_ranks, rank, count, counts, size, window, order, is_own):
        dataset = StreamingDataset(
            local=written(count),
            shuffle=order == "shuffle",
            shuffle_seed=5,
            num_canonical_nodes=2,
            world=World(1, num_ranks, 1, rank),
        )
        kind = StreamingDataLoader if is_own else DataLoader
        return kind(dataset, size, window_fn=Rows(counts), window_size=window, collate_fn=as_list)


class ShardsOfRanks(RankFace):
    """Shards of all kinds, empty ones anywhere; random draws are those of the ranks that began the epoch."""

    is_in_step = False

    @classmethod
    def drawn(cls, rng):
        number = rng.randint(MOST_RANKS, 9)
        sizes = [rng.choice([0, 0, 1, 2, 3, 5]) for _ in range(number)]
        names = [
            f"{rng.choice(['map', 'list', 'generator', 'stream'])}-{place}-{size}" for place, size in enumerate(sizes)
        ]
        return {"names": names, "order": rng.choice(["in order", "inside", "outside"]), "drop_last": rng.random() < 0.3}

    def build(self, num_ranks, rank, names, order, drop_last):
        shards = ShuffledShardSampler(names, 3) if order == "inside" else names
        sampler = DistributedDataParallelShardSampler(shards, num_ranks, rank, drop_last=drop_last)
        if order == "outside":
            sampler = ShuffledShardSampler(sampler, 3)
        return ShardedDataLoader(7, sampler, opened, multiprocessing=False)

    def items(self, microbatch):
        return [repr(plain(microbatch))]

    def whole(self, run):
        return Counter(run)

    def round_size(self, num_ranks):
        return 1


class MixturesOfRanks(RankFace):
    """Sources that are dealt out, in one order."""

    has_fill = fills_early = True
    has_epochs = False  # a source that has given nothing begins its epoch again

    def __init__(self, kind, config):
        super().__init__(kind, config)
        self.has_one_state = {*config["kinds"]} == {"deal_out"}

    @classmethod
    def drawn(cls, rng):
        number = rng.randint(1, 3)
        return {
            "counts": [rng.randint(MOST_RANKS, 20) for _ in range(number)],
            "kinds": [rng.choice(["deal_out", "stream", "StreamingDataLoader"]) for _ in range(number)],
            "size": 1,
            "strategy": rng.choice(STRATEGIES),
        }

    def source(self, kind, num_ranks, rank, count, size, seed):
        if kind != "deal_out":
            world = World(1, num_ranks, 1, rank)
            # After a resume, the other shuffles may fill up the last round with other samples.
            dataset = StreamingDataset(
                local=written(count),
                shuffle=True,
                shuffle_algo="block",
                shuffle_seed=seed,
                num_canonical_nodes=2,
                batch_size=size,
                world=world,
            )
            return (DataLoader if kind == "stream" else StreamingDataLoader)(dataset, size, collate_fn=as_list)
        loader = DataLoader(Samples(count), size, shuffle=True, seed=seed, collate_fn=as_list)
        loader.deal_out(num_ranks, rank)
        return loader

    def build(self, num_ranks, rank, counts, kinds, size, strategy):
        names = [f"s{place}" for place in range(len(counts))]
        parts = zip(names, kinds, counts, strict=True)
        sources = {
            name: self.source(kind, num_ranks, rank, count, size, place)
            for place, (name, kind, count) in enumerate(parts)
        }
        return DictDataLoader(sources, strategy_of(strategy, names), None)

    def items(self, microbatch):
        name, samples = microbatch
        return [(name, int(each["number"] if isinstance(each, dict) else each[0])) for each in samples]

    def whole(self, run):
        counts = self.config["counts"]
        return Counter((f"s{place}", number) for place, count in enumerate(counts) for number in range(count))

    def round_size(self, num_ranks):
        """A stream fills up what is left at each change of the number of ranks."""
        most = num_ranks if {*self.config["kinds"]} == {"deal_out"} else 4 * MOST_RANKS
        return most * self.config["size"] * len(self.config["counts"])


RANK_KINDS = {
    "deal_out": Dealt,
    "deal_out, split_batches": Split,
    "DistributedSampler": OfTorchsRanks,
    "TokenBudgetBatchSampler": BudgetOfRanks,
    "PackedDataset": PackedOfRanks,
    "window_fn": WindowsOfRanks,
    "on_sample_error": SkippingRanks,
    "iterable, strands": StrandsOfRanks,
    "stream": StreamsOfRanks,
    "stream, window_fn": WindowsOfStreams,
    "ShardedDataLoader": ShardsOfRanks,
    "DictDataLoader": MixturesOfRanks,
}


def rank_face_of(kind, config):
    """Return a face as a failing chain has printed it."""
    return RANK_KINDS[kind](kind, config)
