"""Loaders whose orders and bits are kept: each microbatch of two epochs, random draws included."""

from functools import partial

import data_loader_states
import sharded_states
import streaming_states
from state_samples import ItemDraws, Labelled, Numbers, Row, RowWithState, UnevenRow, with_item_draws

from fkat_data import DataLoader
from fkat_data.datasets import DictDataset

#: Numbers of worker processes; the bits are the same for any.
MAP_STYLE = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "items": {"batch_size": None, "shuffle": True},
    "without the last": {"shuffle": True, "drop_last": True},
    "of rank 1": {"shuffle": True, "dp_rank": 1},
}


def map_style(num_workers, folder, *, dataset=Numbers, **options):
    return DataLoader(dataset(14), **{"batch_size": 3, "seed": 3, "num_workers": num_workers, **options})


def iterable(num_workers, folder, *, dataset, count=14, **options):
    return DataLoader(dataset(count), **{"batch_size": 3, "seed": 3, "num_workers": num_workers, **options})


def bucketed(num_workers, folder):
    return DataLoader(data_loader_states.bucketed(init_seed=3), 4, seed=3, num_workers=num_workers)


def packed(num_workers, folder):
    return DataLoader(data_loader_states.packed(seed=3), None, seed=3, num_workers=num_workers)


def mixed_batches(num_workers, folder):
    dataset = DictDataset({"a": Labelled(7), "b": Labelled(4, 100)})
    return DataLoader(dataset, seed=3, num_workers=num_workers, **data_loader_states.mixed_batches())


def from_case(case, num_workers, folder):
    """Return rank 0's loader of a case of kept states."""
    return case.make(0, case.num_loading, folder)


def sharded(num_workers, folder, **options):
    processes = {"multiprocessing": num_workers > 0}
    if num_workers:
        processes |= {"num_shard_prefetches": num_workers - 1}
    return sharded_states.made(0, 1, folder, **processes, **options)


def sharded_together(num_workers, folder, **options):
    """Workers that make each shard together."""
    options["num_workers_per_shard"] = max(1, num_workers)
    return sharded_states.made(0, 1, folder, multiprocessing=num_workers > 0, **options)


def stream(num_workers, folder, **options):
    of_loader = {"num_workers": num_workers}
    return streaming_states.made(0, 1, folder, options={"shuffle_algo": "block", **options}, of_loader=of_loader)


#: Of each: what makes it of a number of workers and a folder, and the numbers of workers that give the same bits.
CASES = {
    **{f"map-style {name}": (partial(map_style, **options), (0, 1, 2)) for name, options in MAP_STYLE.items()},
    "map-style draws of items": (partial(map_style, dataset=ItemDraws, shuffle=True), (0, 1, 2)),
    "map-style draws of items in threads": (
        partial(map_style, dataset=ItemDraws, shuffle=True, workers="threads"),
        (0, 1, 2),
    ),
    **{f"row with {number} workers": (partial(iterable, dataset=Row), (number,)) for number in (0, 1, 2, 3)},
    **{
        f"row with a state with {number} workers": (partial(iterable, dataset=RowWithState), (number,))
        for number in (0, 1, 2, 3)
    },
    **{
        f"uneven row with {number} workers": (partial(iterable, dataset=UnevenRow, count=3), (number,))
        for number in (2, 3)
    },
    "sharded": (sharded, (0, 1, 2)),
    "sharded shuffled": (partial(sharded, shards=sharded_states.shuffled), (0, 2)),
    "sharded over files of items": (partial(sharded_together, **sharded_states.OPTIONS_OF_MAPS), (0, 1, 2)),
    "sharded own sampler": (
        partial(from_case, sharded_states.CASES["own sampler shuffled in place"]),
        (0,),
    ),
    "bucketed": (bucketed, (0, 1)),
    "packed": (packed, (0, 1)),
    "mixed batches": (mixed_batches, (0, 1)),
    "stream draws of items": (partial(stream, transform=with_item_draws), (0, 1, 2)),
    "stream of several streams": (
        lambda num_workers, folder: streaming_states.made(
            0,
            1,
            folder,
            options={"shuffle_algo": "py1e", "batching_method": "stratified"},
            names="ab",
            of_loader={"num_workers": num_workers},
        ),
        (0, 2),
    ),
}
#: The streams in every order; their state's cases have the same loaders.
CASES |= {
    f"stream {name}": (partial(from_case, streaming_states.CASES[name]), (0,))
    for name in ("in order", *streaming_states.ALGORITHMS, "skipped", "weights", "schedule of weights", "in shards")
}
