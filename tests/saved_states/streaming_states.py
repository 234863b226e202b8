"""The kept states of ``StreamingDataLoader``, and of ``ShardedDataLoader`` over it."""

from functools import partial

from state_cases import Case
from state_samples import with_item_draws

from fkat_data import ShardedDataLoader
from fkat_data.streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, World

#: The streams' samples, as many as this, from this number on.
STREAMS = {"a": (96, 0), "b": (48, 1000)}


def written(folder, name):
    """Return the folder of a stream, which is written where it is not there yet."""
    path = folder / name
    if not path.exists():
        count, first = STREAMS[name]
        with MDSWriter(out=str(path), columns={"number": "int"}, size_limit=300) as writer:
            for number in range(first, first + count):
                writer.write({"number": number})
    return str(path)


class PassesOn(StreamingDataset):
    """A user's class with an ``__iter__`` of its own."""

    def __iter__(self):
        for row in super().__iter__():
            yield {"number": row["number"] + 5}


def made(rank, num_ranks, folder, *, options=None, kind=StreamingDataset, num_nodes=1, names="a", of_loader=None):
    found = {"batch_size": 12 // num_ranks, "shuffle": True, "num_canonical_nodes": 2, **(options or {})}
    if len(names) == 1:
        found["local"] = written(folder, names)
    else:
        weights = found.pop("stream_weights", [{}] * len(names))
        streams = zip(names, weights, strict=True)
        found["streams"] = [Stream(local=written(folder, name), **weight) for name, weight in streams]
    world = World(num_nodes, num_ranks // num_nodes, 1, rank)
    return StreamingDataLoader(kind(world=world, **found), **(of_loader or {}))


def stream(of_loader=None, *, names="a", num_nodes=1, kind=StreamingDataset, **options):
    return partial(made, options=options, names=names, num_nodes=num_nodes, kind=kind, of_loader=of_loader)


def batches_of(folder, seed):
    """The factory of a ShardedDataLoader whose shards are seeds."""
    return made(0, 1, folder, options={"shuffle_algo": "block", "shuffle_seed": seed, "batch_size": 16})


def in_shards(rank, num_ranks, folder):
    written(folder, "a")
    return ShardedDataLoader(7, [3, 4], partial(batches_of, folder), dp_rank=rank, multiprocessing=False)


def as_the_reference(state):
    """Keep what the reference's state has."""
    names = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")
    return {name: state[name] for name in names}


def as_json(state):
    """Return what JSON makes of a state."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in state.items()}


SCHEDULE = [{"from_sample": 0, "weights": [3, 1]}, {"from_sample": 144, "weights": [1, 2]}]
BY_TWO = {"stream_weights": [{"proportion": 0.75}, {"proportion": 0.25}], "epoch_size": 96}
#: Of a run on 2 ranks, in microbatches of each.
TWO_RANKS = {"begin": [[0, 0]], "middle": [[3, 3]], "later": [[20, 20]]}
ALGORITHMS = ("block", "py1e", "py1br", "py1b", "py1s", "py2s", "naive")
METHODS = ("random", "stratified", "per_stream", "device_stratified", "device_per_stream")

CASES = {
    "in order": Case(stream(shuffle=False)),
    "tickets": Case(
        stream({"commit": "manual"}, shuffle_algo="block"), cuts={"middle": [[3]]}, rest_limit=50, is_run_compared=False
    ),
    **{name: Case(stream(shuffle_algo=name)) for name in ALGORITHMS},
    **{f"{name} on two ranks": Case(stream(shuffle_algo=name), num_ranks=2) for name in ("block", "py1e", "py1s")},
    "block on two nodes": Case(stream(shuffle_algo="block", num_nodes=2), num_ranks=2),
    "py1e on two nodes": Case(stream(shuffle_algo="py1e", num_nodes=2), num_ranks=2),
    "py1e on two ranks each its own": Case(stream(shuffle_algo="py1e"), num_ranks=2, form="own", cuts=TWO_RANKS),
    "two ranks for three": Case(
        stream(shuffle_algo="block"), num_ranks=2, loads_on=3, cuts=TWO_RANKS, is_run_compared=False
    ),
    "two ranks for one": Case(
        stream(shuffle_algo="py1e"), num_ranks=2, loads_on=1, cuts=TWO_RANKS, is_run_compared=False
    ),
    "two ranks then three": Case(
        stream(shuffle_algo="py1br"), num_ranks=(2, 3), cuts={"within an epoch": [[3, 3], [2, 2, 2]]}
    ),
    "in batches that do not divide": Case(stream(shuffle_algo="block", batch_size=10)),
    "without the last": Case(stream({"drop_last": True}, shuffle_algo="block", batch_size=10)),
    "replicated": Case(stream(shuffle_algo="block", replication=2), num_ranks=2),
    "epoch of 60": Case(stream(shuffle_algo="block", epoch_size=60)),
    "skipped": Case(stream(shuffle_algo="block", skip=[{"epoch": 0, "batches": [2, 4]}, {"samples": [17, 4, 33]}])),
    "weights": Case(stream(names="ab", shuffle_algo="block", **BY_TWO)),
    "fixed sampling": Case(stream(names="ab", shuffle_algo="py1e", sampling_method="fixed", **BY_TWO)),
    "schedule of weights": Case(stream(names="ab", shuffle_algo="block", epoch_size=96, weight_schedule=SCHEDULE)),
    **{f"batches {name}": Case(stream(names="ab", shuffle_algo="block", batching_method=name)) for name in METHODS},
    **{
        f"batches {name} on two ranks": Case(
            stream(names="ab", shuffle_algo="py1e", batching_method=name), num_ranks=2, cuts=TWO_RANKS
        )
        for name in METHODS
    },
    "draws of items": Case(stream(shuffle_algo="block", transform=with_item_draws)),
    "by workers": Case(
        stream({"num_workers": 2}, shuffle_algo="block", transform=with_item_draws),
        has_processes=True,
        cuts={"middle": [[3]], "third epoch": [[20]]},
    ),
    "own iteration": Case(stream(shuffle_algo="block", kind=PassesOn)),
    "own iteration by a worker": Case(
        stream({"num_workers": 1}, shuffle_algo="block", kind=PassesOn),
        has_processes=True,
        cuts={"middle": [[3]]},
    ),
    "the reference's": Case(stream(shuffle_algo="py1e"), change=as_the_reference),
    "the reference's of two ranks": Case(
        stream(shuffle_algo="py1s"), num_ranks=2, change=as_the_reference, cuts=TWO_RANKS
    ),
    "through JSON": Case(stream(shuffle_algo="block"), change=as_json),
    "in shards": Case(in_shards),
}
