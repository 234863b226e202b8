"""The kept states of ``fkat_data.DataLoader``."""

from functools import partial

import torch
from state_cases import Case
from state_samples import (
    BatchesWithState,
    Documents,
    DrawnOneByOne,
    IteratorWithState,
    Labelled,
    Numbers,
    Row,
    RowWithState,
    UnevenRow,
    lines_of,
)
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from fkat_data import DataLoader
from fkat_data.datasets import (
    BufferSortedDataset,
    DictDataset,
    DistributedShardedDataset,
    PackedDataset,
    ShardedDataset,
    TokenBudgetBatchSampler,
    attention_cost,
)
from fkat_data.mixing import DictBatchSampler, Weighted


def made(rank, num_ranks, folder, *, dataset=lambda: Numbers(14), options=None, deal=None, **given):
    """Return a loader of a rank; what is made anew for each is a function."""
    own = {} if options is None else options(rank, num_ranks)
    loader = DataLoader(dataset(), **{"batch_size": 3, **given, **own})
    if deal is not None:
        loader.deal_out(num_ranks, rank, **deal)
    return loader


def of(options=None, **given):
    """Return what makes loaders; ``options`` makes arguments that no two loaders share."""
    return partial(made, options=None if options is None else lambda rank, num_ranks: options(), **given)


def of_rank(options, **given):
    return partial(made, options=options, **given)


def generator():
    return torch.Generator().manual_seed(5)


def bucketed(**options):
    return BufferSortedDataset(Numbers(40), buffer_size=16, pack_size=4, **options)


def packed(**options):
    return PackedDataset(Documents(30), 16, window_size=12, **options)


def token_budget(**options):
    lengths = [Numbers(20).sort_key(index) for index in range(20)]
    return {"batch_size": 1, "batch_sampler": TokenBudgetBatchSampler(lengths, 24, window_size=10, **options)}


def packed_by_cost(rank, num_ranks, folder):
    ranks = {"rank": rank, "world_size": num_ranks, "cost": attention_cost(2), "accumulate": 3}
    return DataLoader(PackedDataset(Documents(300), 16, window_size=12, seed=3, **ranks), batch_size=None)


def budgeted_by_cost(rank, num_ranks):
    return token_budget(seed=3, rank=rank, world_size=num_ranks, cost=attention_cost(2))


def shards_of_samples():
    parts = {str(number): ((5, 5 * number), {}) for number in range(4)}
    return DistributedShardedDataset(Numbers, parts, rank=0, world_size=1, prefetch=False, shuffle=True)


def mixed_batches():
    samplers = {name: BatchSampler(range(size), 2, drop_last=False) for name, size in (("a", 7), ("b", 4))}
    return {"batch_size": 1, "batch_sampler": DictBatchSampler(Weighted({"a": 2, "b": 1}, seed=3), samplers)}


def of_files(rank, num_ranks, folder):
    return DataLoader(lines_of(folder, "3"), 2, shuffle=True, seed=3)


def distributed(rank, num_ranks):
    return {"sampler": DistributedSampler(range(14), num_ranks, rank, seed=2)}


def by_workers(num_workers, cuts, options=None, **given):
    """Return a case whose states a loader with workers saves, and one without loads."""
    return Case(of(options, **given), saver=of(options, num_workers=num_workers, **given), cuts=cuts)


#: Of orders whose state holds a generator's, a few kilobytes each.
AGAIN = {"rest_limit": 50, "is_run_compared": False}
FEW = {"begin": [[0]], "middle": [[2]], "third epoch": [[12]]}
FEW_OF_TWO = {"begin": [[0, 0]], "middle": [[1, 1]], "third epoch": [[7, 7]]}
EVEN = {"even_batches": True, "split_batches": False}
DEALT = {
    "dealt even": EVEN,
    "dealt uneven": {"even_batches": False, "split_batches": False},
    "dealt even split": {"even_batches": True, "split_batches": True},
    "dealt uneven split": {"even_batches": False, "split_batches": True},
}
#: In rounds of 4 samples, 14 leave a round that is not whole.
ROUNDS = {"batch_size": 4, "seed": 9, "shuffle": True}

CASES = {
    "in order": Case(of()),
    "in order with a seed": Case(of(seed=3)),
    "shuffled": Case(of(shuffle=True, seed=3)),
    "shuffled without a seed": Case(of(shuffle=True)),
    "shuffled by a generator": Case(of(lambda: {"generator": generator()}, shuffle=True)),
    "items": Case(of(batch_size=None, shuffle=True, seed=3)),
    "without the last": Case(of(drop_last=True, shuffle=True, seed=3)),
    "random sampler": Case(of(lambda: {"sampler": RandomSampler(range(14))}, seed=3), cuts=FEW),
    "random sampler with a generator": Case(
        of(lambda: {"sampler": RandomSampler(range(14), generator=generator())}), cuts=FEW
    ),
    "random sampler of more": Case(
        of(lambda: {"sampler": RandomSampler(range(14), replacement=True, num_samples=20)}), cuts=FEW
    ),
    "weighted sampler": Case(
        of(lambda: {"sampler": WeightedRandomSampler([1.0 + index for index in range(14)], 14)}), cuts=FEW
    ),
    "drawn one by one": Case(of(lambda: {"sampler": DrawnOneByOne(14)}), cuts=FEW),
    "batch sampler": Case(
        of(lambda: {"batch_size": 1, "batch_sampler": BatchSampler(DrawnOneByOne(14), 3, False)}), cuts=FEW
    ),
    "batch sampler with a state": Case(
        of(lambda: {"batch_size": 1, "batch_sampler": BatchesWithState(14, 3)}), cuts=FEW
    ),
    "mixed batches": Case(
        of(mixed_batches, dataset=lambda: DictDataset({"a": Labelled(7), "b": Labelled(4, 100)})), cuts=FEW
    ),
    "bucketed with a drawn seed": Case(of(dataset=bucketed, batch_size=4)),
    "bucketed": Case(of(dataset=lambda: bucketed(init_seed=3), batch_size=4)),
    "a view of bucketed": Case(of(dataset=lambda: ShardedDataset(bucketed(), 2, 1, "sequential", False), batch_size=4)),
    "packed with a drawn seed": Case(of(dataset=packed, batch_size=None)),
    # Of 14, 13, 15 and 14 sequences. Not at an epoch's end: the state has the length of the epoch before.
    "packed": Case(
        of(dataset=lambda: packed(seed=3), batch_size=None),
        cuts={"begin": [[0]], "middle": [[6]], "second epoch": [[17]], "fourth epoch": [[47]]},
    ),
    "token budget with a drawn seed": Case(of(token_budget)),
    "token budget": Case(of(lambda: token_budget(seed=3))),
    "packed by cost": Case(packed_by_cost, 2, cuts={"middle": [[25, 25]]}, rest_limit=50),
    "packed by cost, on other ranks": Case(
        packed_by_cost,
        2,
        3,
        cuts={"middle": [[25, 25]], "out of step": [[9, 40]]},
        rest_limit=50,
        is_run_compared=False,
    ),
    "token budget by cost": Case(of_rank(budgeted_by_cost), 2, cuts=FEW_OF_TWO),
    "shards of samples": Case(of(dataset=shards_of_samples, batch_size=4)),
    # A state says what the files were, by their text.
    "files": Case(of_files),
    # Saved by workers, for loaders without any.
    "by a worker": by_workers(1, {"middle": [[3]]}, shuffle=True, seed=3),
    "by workers": by_workers(2, {"third epoch": [[12]]}, shuffle=True, seed=3),
    "by workers in order": by_workers(2, {"end": [[5]]}),
    "random sampler by workers": by_workers(2, {"middle": [[2]]}, lambda: {"sampler": RandomSampler(range(14))}),
    "bucketed by workers": by_workers(2, {"second epoch": [[13]]}, dataset=bucketed, batch_size=4),
    "packed by a worker": by_workers(1, {"second epoch": [[16]]}, dataset=packed, batch_size=None),
    # Several ranks.
    "distributed sampler": Case(of_rank(distributed, seed=3), num_ranks=2, form="own"),
    "distributed sampler gathered": Case(of_rank(distributed, seed=3), num_ranks=2, in_group=True),
    "distributed sampler out of step": Case(of_rank(distributed, seed=3), num_ranks=2, shift=1, in_group=True),
    **{name: Case(of(deal=deal, **ROUNDS), num_ranks=2, form="own") for name, deal in DEALT.items()},
    **{f"{name} gathered": Case(of(deal=deal, **ROUNDS), num_ranks=2, in_group=True) for name, deal in DEALT.items()},
    "dealt state of rank 0": Case(
        of(deal=EVEN, **ROUNDS), num_ranks=2, form="first", cuts={"middle": [[1, 1]], "third epoch": [[5, 5]]}
    ),
    # What was delivered is not committed, and comes again.
    "tickets": Case(of(shuffle=True, seed=3, commit="manual"), cuts={"middle": [[3]]}, **AGAIN),
    "tickets, on other ranks": Case(
        of(deal=EVEN, batch_size=2, shuffle=True, seed=3, commit="manual"), 2, 3, cuts={"middle": [[2, 2]]}, **AGAIN
    ),
    "dealt to three": Case(of(deal=EVEN, **ROUNDS), num_ranks=3, in_group=True),
    "dealt without the last": Case(of(deal=EVEN, **ROUNDS, drop_last=True), num_ranks=2, in_group=True),
    "dealt random sampler": Case(
        of(lambda: {"sampler": RandomSampler(range(14))}, deal=EVEN, seed=9),
        num_ranks=2,
        in_group=True,
        cuts=FEW_OF_TWO,
    ),
    "dealt batch sampler": Case(
        of(lambda: {"batch_size": 1, "batch_sampler": BatchesWithState(14, 3)}, deal=EVEN, seed=9),
        num_ranks=2,
        in_group=True,
        cuts=FEW_OF_TWO,
    ),
    # Iterable datasets: without workers there is one strand.
    "row": Case(of(dataset=lambda: Row(14), seed=3)),
    "row of items": Case(of(dataset=lambda: Row(7), batch_size=None, seed=3)),
    "row without the last": Case(of(dataset=lambda: Row(14), drop_last=True, seed=3)),
    "row with a state": Case(of(dataset=lambda: RowWithState(14))),
    "row with a state every third": Case(of(dataset=lambda: RowWithState(20), snapshot_every_n_steps=3)),
    "row with a state never": Case(of(dataset=lambda: RowWithState(14), snapshot_every_n_steps=0)),
    "iterator with a state": Case(of(dataset=lambda: IteratorWithState(14))),
    "row of ranks": Case(
        of_rank(lambda rank, num_ranks: {"dp_rank": rank}, dataset=lambda: RowWithState(14), deal={}),
        num_ranks=2,
        in_group=True,
        shift=1,
    ),
}

# The number of workers decides on the strands, and so on the order; each has a snapshot of its own.
for num_workers in (1, 2):
    for dataset, every in ((Row, 1), (RowWithState, 1), (RowWithState, 3)):
        CASES[f"{num_workers} strands of {dataset.__name__} every {every}"] = Case(
            of(dataset=partial(dataset, 14), num_workers=num_workers, snapshot_every_n_steps=every, seed=3),
            has_processes=True,
            cuts={"begin": [[0]], "middle": [[3]], "end": [[5]], "third epoch": [[12]]},
        )
CASES["strands of unequal length"] = Case(
    of(dataset=partial(UnevenRow, 5), num_workers=2, batch_size=2, seed=3),
    has_processes=True,
    # Of 3 and 5 microbatches: the first strand ends with the 5th, and the 7th and 8th are the second's.
    cuts={"both": [[4]], "one has ended": [[6]], "one is left": [[7]], "end": [[8]], "second epoch": [[15]]},
)
CASES["strands that stay"] = Case(
    of(dataset=partial(RowWithState, 14), num_workers=2, persistent_workers=True, seed=3),
    has_processes=True,
    cuts={"third epoch": [[14]]},
)
