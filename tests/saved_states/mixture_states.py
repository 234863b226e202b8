"""The kept states of ``DictDataLoader`` over loaders of each kind."""

import data_loader_states
import sharded_states
import streaming_states
from state_cases import Case
from state_samples import Labelled

from fkat_data import DataLoader, DistributedDataParallelShardSampler
from fkat_data.mixing import DictDataLoader, Frequency, RoundRobin, Weighted


def shards(rank, num_ranks, folder):
    return sharded_states.made(rank, num_ranks, folder, shards=sharded_states.shuffled_over_ranks)


def even_shards(rank, num_ranks, folder):
    shards = [f"{kind}-{index}-3" for index, kind in enumerate(("list", "skip", "generator", "list"))]
    return sharded_states.made(
        rank, num_ranks, folder, shards=lambda size, rank: DistributedDataParallelShardSampler(shards, size, rank)
    )


def samples(rank, num_ranks, folder):
    return data_loader_states.made(rank, num_ranks, folder, shuffle=True, seed=9)


def row(rank, num_ranks, folder):
    return data_loader_states.made(
        rank, num_ranks, folder, dataset=lambda: data_loader_states.RowWithState(14), seed=9, dp_rank=rank
    )


def stream(rank, num_ranks, folder):
    return streaming_states.made(rank, num_ranks, folder, options={"shuffle_algo": "block"})


def mixture(names, strategy, **options):
    """Return what makes a mixture of sources of these kinds."""
    kinds = {"shards": shards, "even shards": even_shards, "samples": samples, "row": row, "stream": stream}

    def make(rank, num_ranks, folder):
        sources = {name: kinds[name](rank, num_ranks, folder) for name in names}
        return DictDataLoader(sources, strategy(names), key=None, **options)

    return make


def labelled(rank, num_ranks, folder):
    sources = {
        name: DataLoader(Labelled(10, first), 2, shuffle=True, seed=first) for name, first in (("a", 0), ("b", 100))
    }
    return DictDataLoader(sources, RoundRobin(["a", "b"]), key="dataset")


def weighted(names):
    return Weighted({name: index + 1 for index, name in enumerate(names)}, seed=3)


def often(names):
    return Frequency([[name, index + 1] for index, name in enumerate(names)])


CASES = {
    "shards and samples": Case(mixture(["shards", "samples"], weighted)),
    "shards and a row": Case(mixture(["shards", "row"], often, on_exhausted="restart")),
    "samples and a row": Case(mixture(["samples", "row"], often, on_exhausted="stop")),
    "with a stream": Case(mixture(["stream", "samples", "shards"], weighted)),
    "restarted stream": Case(mixture(["stream", "samples"], often, on_exhausted="restart")),
    "each its own": Case(mixture(["shards", "samples"], weighted), form="own"),
    "labelled": Case(labelled),
    # A gathered state has one schedule: the sources of all ranks are equally long.
    "two ranks": Case(mixture(["even shards", "samples"], weighted), num_ranks=2, in_group=True),
    "two ranks with a stream": Case(mixture(["even shards", "stream", "row"], weighted), num_ranks=2, in_group=True),
    "two ranks each its own": Case(mixture(["shards", "samples"], weighted), num_ranks=2, shift=2, form="own"),
}
