"""The kept states of ``ShardedDataLoader``."""

from functools import partial

from state_cases import Case
from state_samples import (
    SHARDS,
    EndlessShards,
    RotatingShards,
    ShardItems,
    ShuffledInPlace,
    failing,
    lines_of,
    microbatches_of,
)

from fkat_data import (
    DataLoaderFactory,
    DistributedDataParallelShardSampler,
    ShardedDataLoader,
    ShuffledShardSampler,
)

ITEMS = DataLoaderFactory(ShardItems, batch_size=2)


def made(rank, num_ranks, folder, *, shards=SHARDS, factory=microbatches_of, multiprocessing=False, **options):
    if callable(shards):
        shards = shards(num_ranks, rank)
    return ShardedDataLoader(7, shards, factory, dp_rank=rank, multiprocessing=multiprocessing, **options)


def sharded(**options):
    return partial(made, **options)


def of_files(rank, num_ranks, folder):
    factory = DataLoaderFactory(partial(lines_of, folder), batch_size=2)
    return made(rank, num_ranks, folder, shards=["1", "2"], factory=factory)


def own(sampler, num_ranks, rank):
    return sampler()


def shuffled(num_ranks, rank):
    return ShuffledShardSampler(SHARDS, seed=4)


def in_blocks(num_ranks, rank):
    return DistributedDataParallelShardSampler(SHARDS, num_ranks, rank)


def shuffled_within_ranks(num_ranks, rank):
    inner = DistributedDataParallelShardSampler(SHARDS, num_ranks, rank, drop_last=False)
    return ShuffledShardSampler(inner, seed=4)


def shuffled_over_ranks(num_ranks, rank):
    return DistributedDataParallelShardSampler(ShuffledShardSampler(SHARDS, seed=4), num_ranks, rank, drop_last=False)


def only_indices(state):
    """Keep what the system that this one follows saves."""
    return {"all_rank_indices": list(state["all_rank_indices"])}


def only_indices_and_epoch(state):
    return {**only_indices(state), "epoch": state["epoch"]}


#: A re-split: of 2 ranks that are in step, and of those that are not, in the first epoch and in a later one.
TWO_RANKS = {
    "in step": [[4, 4]],
    "one further": [[2, 7]],
    "one at its end": [[10, 3]],
    "third epoch": [[23, 24]],
}
TWO_THEN_THREE = {
    "at once": [[4, 4], [0, 0, 0]],
    "again in the epoch": [[4, 4], [2, 2, 1]],
    "one has nothing left": [[8, 8], [2, 1, 1]],
    "in the next epoch": [[4, 4], [7, 7, 7]],
}
OPTIONS_OF_MAPS = {"shards": ["map-1-7", "map-2-5", "map-3-0", "map-4-6"], "factory": ITEMS}

CASES = {
    "list": Case(sharded()),
    "list local": Case(sharded(), form="own"),
    "shuffled": Case(sharded(shards=shuffled)),
    "tickets": Case(sharded(commit="manual"), cuts={"middle": [[4]]}, rest_limit=50, is_run_compared=False),
    "factory": Case(sharded(**OPTIONS_OF_MAPS)),
    # A state says what the file of a begun shard was, by its text.
    "files": Case(of_files),
    "by processes": Case(
        sharded(shards=shuffled),
        saver=sharded(shards=shuffled, multiprocessing=True, num_shard_prefetches=2),
        cuts={"middle": [[9]], "second epoch": [[19]]},
    ),
    "own sampler with a state": Case(sharded(shards=partial(own, RotatingShards))),
    "own sampler shuffled in place": Case(sharded(shards=partial(own, ShuffledInPlace))),
    "own sampler without an end": Case(
        sharded(shards=partial(own, EndlessShards)),
        cuts={"begin": [[0]], "later": [[23]]},
        rest_limit=30,
    ),
    "skipped shards": Case(sharded(factory=failing, on_shard_error="skip")),
    "two ranks": Case(sharded(shards=in_blocks), num_ranks=2),
    "two ranks out of step": Case(sharded(shards=in_blocks), num_ranks=2, shift=2),
    "two ranks each its own": Case(sharded(shards=in_blocks), num_ranks=2, form="own"),
    "two ranks shuffled within": Case(sharded(shards=shuffled_within_ranks), num_ranks=2, shift=1),
    "two ranks shuffled over": Case(sharded(shards=shuffled_over_ranks), num_ranks=2, shift=1),
    "two ranks in torch.distributed": Case(sharded(shards=shuffled_over_ranks), num_ranks=2, shift=1, in_group=True),
    "two ranks for three": Case(
        sharded(shards=shuffled_over_ranks), num_ranks=2, loads_on=3, cuts=TWO_RANKS, is_run_compared=False
    ),
    "two ranks for one": Case(
        sharded(shards=shuffled_within_ranks), num_ranks=2, loads_on=1, cuts=TWO_RANKS, is_run_compared=False
    ),
    "two ranks then three": Case(sharded(shards=shuffled_over_ranks), num_ranks=(2, 3), cuts=TWO_THEN_THREE),
    "two ranks then three each its own": Case(
        sharded(shards=shuffled_over_ranks), num_ranks=(2, 3), cuts=TWO_THEN_THREE, form="own"
    ),
    "two ranks then three then two": Case(
        sharded(shards=shuffled_over_ranks), num_ranks=(2, 3), loads_on=2, cuts=TWO_THEN_THREE
    ),
    "older system": Case(
        sharded(shards=in_blocks),
        num_ranks=2,
        cuts={"begin": [[0, 0]], "between shards": [[3, 4]]},
        change=only_indices,
        is_run_compared=False,
    ),
    "older system with an epoch": Case(
        sharded(shards=in_blocks),
        num_ranks=2,
        cuts={"later": [[23, 24]]},
        change=only_indices_and_epoch,
        is_run_compared=False,
    ),
}
