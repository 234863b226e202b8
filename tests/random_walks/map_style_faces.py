"""The faces of loaders over datasets with indices."""

import torch
from drop_in_examples import Further, FurtherAtOnce, FurtherInPlace, Rewinding
from face import Face
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, WeightedRandomSampler
from walk_data import Backwards, Documents, Drawing, Permuted, Rows, Samples, as_list, labelled

from fkat_data import DataLoader
from fkat_data.datasets import (
    BufferSortedDataset,
    DictDataset,
    MapDataset,
    PackedDataset,
    TokenBudgetBatchSampler,
    collate_packed,
)
from fkat_data.mixing import DictBatchSampler, Frequency, RoundRobin, Weighted


class MapStyle(Face):
    """A map-style dataset, in an order of the loader's."""

    @classmethod
    def drawn(cls, rng):
        # Now and then more batches than are planned at once.
        count = rng.randint(1, 17) if rng.random() < 0.9 else rng.randint(34, 60)
        return {"count": count, "size": rng.randint(1, 5), "drop_last": rng.random() < 0.2}


class InOrder(MapStyle):
    jumps = has_samples = True

    def build(self, count, size, drop_last, **how):
        return DataLoader(Samples(count, is_of_items=True), size, drop_last=drop_last, seed=3, **how)


class Shuffled(MapStyle):
    jumps = has_samples = True

    def build(self, count, size, drop_last, **how):
        return DataLoader(Samples(count, is_of_items=True), size, shuffle=True, drop_last=drop_last, seed=3, **how)


class ShuffledByDrawnSeed(MapStyle):
    def build(self, count, size, drop_last, **how):
        return DataLoader(Samples(count), size, shuffle=True, drop_last=drop_last, **how)


class ShuffledByGenerator(MapStyle):
    def build(self, count, size, drop_last, **how):
        generator = torch.Generator().manual_seed(8)
        return DataLoader(Samples(count), size, shuffle=True, drop_last=drop_last, generator=generator, **how)


SAMPLERS = {
    "RandomSampler": lambda count: RandomSampler(range(count)),
    "RandomSampler, generator": lambda count: RandomSampler(range(count), generator=torch.Generator().manual_seed(3)),
    "RandomSampler, replacement": lambda count: RandomSampler(range(count), replacement=True, num_samples=count + 2),
    "WeightedRandomSampler": lambda count: WeightedRandomSampler([1.0] * count, count),
    "backwards": Backwards,
    "permuted": Permuted,
    "drawing": Drawing,
    "rewinding": Rewinding,
    "further epochs": Further,
    "further epochs, at once": FurtherAtOnce,
    "further epochs, in place": FurtherInPlace,
}


def is_before_further_epochs(sampler, place):
    """Return whether this is before the first iteration of a sampler that a load has begin another epoch."""
    return sampler.startswith("further") and place[:2] == (0, 0)


class Sampled(MapStyle):
    """In an order of a sampler, which gives indices or batches of them."""

    # Behind an epoch that was left, one that draws index by index goes on from where its generator was left.
    samplers = tuple(name for name in SAMPLERS if name != "permuted")

    @classmethod
    def drawn(cls, rng):
        # Where an epoch is left, torch's samplers have moved their generators as far as batches were drawn: up to 32.
        count = {"count": rng.randint(1, 31)}
        return {**super().drawn(rng), **count, "sampler": rng.choice(cls.samplers), "is_batched": rng.random() < 0.3}

    def build(self, count, size, drop_last, sampler, is_batched, **how):
        order = SAMPLERS[sampler](count)
        given = {"batch_size": size, "sampler": order, "drop_last": drop_last}
        if is_batched:
            given = {"batch_sampler": BatchSampler(order, size, drop_last)}
        return DataLoader(Samples(count), seed=3, **given, **how)

    def __init__(self, kind, config):
        super().__init__(kind, config)
        # Else it has what was read of the epoch before, or how far the order was read, which workers decide.
        self.has_one_state = config["sampler"] != "rewinding" and not config["sampler"].startswith("further")

    def may_refuse(self, place):
        return is_before_further_epochs(self.config["sampler"], place)


class OfOneRank(MapStyle):
    """With torch's DistributedSampler, whose epoch the program sets."""

    @staticmethod
    def before_loop(loader, epoch):
        loader.sampler.set_epoch(epoch)

    def build(self, count, size, drop_last, **how):
        sampler = DistributedSampler(range(count), 2, 1, seed=3)
        return DataLoader(Samples(count), size, sampler=sampler, drop_last=drop_last, seed=4, **how)


class Dealt(Sampled):
    """One rank's part of what `deal_out` gives to ranks."""

    @classmethod
    def drawn(cls, rng):
        # Enough for a round, also with drop_last.
        return {**super().drawn(rng), "count": rng.randint(15, 31), "is_even": rng.random() < 0.5}

    @staticmethod
    def fit(config):
        return config

    def build(self, is_even, **given):
        loader = super().build(**given)
        loader.deal_out(3, 1, even_batches=is_even)
        return loader


class Budgeted(MapStyle):
    @classmethod
    def drawn(cls, rng):
        return {
            "count": rng.randint(1, 20),
            "budget": rng.randint(13, 50),
            "window": rng.randint(2, 20),
            "has_seed": rng.random() < 0.5,
            "shuffle": rng.random() < 0.8,
        }

    def build(self, count, budget, window, has_seed, shuffle, **how):
        samples = Samples(count)
        sampler = TokenBudgetBatchSampler(
            samples, budget, window, seed=3 if has_seed else None, shuffle=shuffle or not has_seed
        )
        return DataLoader(samples, batch_sampler=sampler, seed=4, **how)


def strategy_of(name, names, seed=3):
    return {
        "weighted": lambda: Weighted({name: place + 1 for place, name in enumerate(names)}, seed),
        "round robin": lambda: RoundRobin(names),
        "frequency": lambda: Frequency([[name, 2 - place % 2] for place, name in enumerate(names)]),
    }[name]()


STRATEGIES = ["weighted", "round robin", "frequency"]


class DictSampled(MapStyle):
    """Batches of several datasets, mixed by a sampler."""

    @classmethod
    def drawn(cls, rng):
        return {
            "counts": [rng.randint(0, 8) for _ in range(rng.randint(1, 3))] + [rng.randint(1, 5)],
            "size": rng.randint(1, 3),
            "strategy": rng.choice(STRATEGIES),
            "on_exhausted": rng.choice(["drop", "restart"]),
            "sets_epoch": rng.random() < 0.5,
        }

    def __init__(self, kind, config):
        super().__init__(kind, config)
        if config["sets_epoch"]:
            self.has_length = False  # the sampler's is that of the epoch which the program has set
            self.before_loop = lambda loader, epoch: loader.batch_sampler.set_epoch(epoch)

    def build(self, counts, size, strategy, on_exhausted, sets_epoch, **how):
        del sets_epoch
        names = [f"s{place}" for place in range(len(counts))]
        samplers = {
            name: BatchSampler(SequentialSampler(range(count)), size, False)
            for name, count in zip(names, counts, strict=True)
        }
        datasets = {name: MapDataset(Samples(count), labelled) for name, count in zip(names, counts, strict=True)}
        sampler = DictBatchSampler(strategy_of(strategy, names), samplers, on_exhausted=on_exhausted)
        return DataLoader(DictDataset(datasets), batch_sampler=sampler, seed=4, collate_fn=as_list, **how)


class Unbatched(MapStyle):
    @classmethod
    def drawn(cls, rng):
        return {"count": rng.randint(1, 9), "shuffle": rng.random() < 0.5}

    def build(self, count, shuffle, **how):
        return DataLoader(Samples(count), None, shuffle=shuffle, seed=3, **how)


class Packed(MapStyle):
    @classmethod
    def drawn(cls, rng):
        return {
            "count": rng.randint(1, 20),
            "size": rng.randint(1, 3),
            "window": rng.randint(1, 20),
            "has_seed": rng.random() < 0.5,
            "shuffle": rng.random() < 0.5,
            "drop_last": False,
        }

    def build(self, count, size, window, has_seed, shuffle, drop_last, **how):
        packed = PackedDataset(Documents(count), 16, window, seed=3 if has_seed else None)
        return DataLoader(packed, size, shuffle=shuffle, drop_last=drop_last, collate_fn=collate_packed, seed=4, **how)


class Sorted(MapStyle):
    @classmethod
    def drawn(cls, rng):
        return {
            **super().drawn(rng),
            "buffer": rng.randint(1, 9),
            "pack": rng.randint(1, 4),
            "has_seed": rng.random() < 0.5,
        }

    def build(self, count, size, drop_last, buffer, pack, has_seed, **how):
        dataset = BufferSortedDataset(Samples(count), buffer, pack, init_seed=3 if has_seed else None)
        return DataLoader(dataset, size, drop_last=drop_last, seed=4, **how)


def counts_of_rows(rng, count):
    """Return how many rows each sample has; the first ones have none in some cases."""
    counts = [rng.choice([0, 0, 1, 1, 2, 3]) for _ in range(count)]
    if rng.random() < 0.5:
        empty = rng.randint(0, count)
        counts[:empty] = [0] * empty
    if not any(counts):
        counts[rng.randrange(count)] = 2
    return counts


class Windowed(MapStyle):
    """Microbatches of the rows of windows."""

    knows_end_always = False
    goes_on_behind_end = True
    has_length = False

    @classmethod
    def drawn(cls, rng):
        count = rng.randint(1, 15)
        return {
            "count": count,
            "counts": counts_of_rows(rng, count),
            "size": rng.choice([None, 1, 2, 3]),
            "window": rng.randint(1, 6),
            "order": rng.choice(
                [
                    "in order",
                    "shuffle",
                    "backwards",
                    "RandomSampler, generator",
                    "rewinding",
                    "further epochs",
                    "permuted",
                ]
            ),
        }

    def __init__(self, kind, config):
        super().__init__(kind, config)
        self.has_one_state = config["order"] != "rewinding" and not config["order"].startswith("further")

    def may_refuse(self, place):
        return is_before_further_epochs(self.config["order"], place)

    def build(self, count, counts, size, window, order, **how):
        given = {"sampler": SAMPLERS[order](count)} if order in SAMPLERS else {"shuffle": order == "shuffle"}
        return DataLoader(
            Samples(count),
            size,
            seed=3,
            window_fn=Rows(counts),
            window_size=window,
            collate_fn=as_list,
            **given,
            **how,
        )


class Skipping(MapStyle):
    """Samples that cannot be read are left out."""

    knows_end_always = False
    goes_on_behind_end = True
    has_length = False
    fails = False  # that would be left out

    @classmethod
    def drawn(cls, rng):
        count = rng.randint(1, 17)
        bad = rng.sample(range(count), rng.randint(0, count - 1))
        return {
            "count": count,
            "bad": bad,
            "size": rng.choice([None, 1, 2, 3]),
            "window": rng.randint(1, 6),
            "shuffle": rng.random() < 0.5,
        }

    def build(self, count, bad, size, window, shuffle, **how):
        return DataLoader(
            Samples(count, frozenset(bad)),
            size,
            shuffle=shuffle,
            seed=3,
            on_sample_error="skip",
            window_size=window,
            **how,
        )
