"""Runs of the reference, batch by batch, and its checkpoints."""

import pytest
from order_vectors import VECTORS
from streaming_examples import shards_directory, worlds

from fkat_data.streaming import StreamingDataLoader, StreamingDataset

DATA = str(shards_directory() / "mds-merged" / "data")
STATE_KEYS = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")


def read(loader, stop=None):
    batches = []
    for batch in loader:
        batches.append(batch["v"].tolist())
        if len(batches) == stop:
            break
    return batches


def state_of(loader):
    return {key: loader.state_dict()[key] for key in STATE_KEYS}


def loaders(run, args):
    local = run["local_world_size"]
    return [
        StreamingDataLoader(StreamingDataset(local=DATA, world=world, **args), num_workers=run["num_workers"])
        for world in worlds(run["world_size"] // local, local)
    ]


@pytest.mark.parametrize("run", VECTORS["runs"], ids=lambda run: run["name"])
@pytest.mark.usefixtures("nothing_left_behind")
def test_an_epoch_its_state_and_its_resumption_are_the_references(processes, run):
    for rank, loader in enumerate(loaders(run, run["args"])):
        assert len(loader.dataset) == run["len"]
        assert read(loader) == run["full_epoch_batches_per_rank"][rank]
        assert state_of(loader) == run["state_at_end"]
    for rank, loader in enumerate(loaders(run, run["args"])):
        stop = run["stop_after_batches"]
        assert read(loader, stop) == run["full_epoch_batches_per_rank"][rank][:stop]
        assert state_of(loader) == run["state_at_stop"]
        ours = loader.state_dict()
        # The reference's five keys, and ours with the fingerprint.
        for state in (run["state_at_stop"], ours):
            for resumed in run["resumed"]:
                args = run["args"] | {"batch_size": resumed["batch_size"]}
                for resumed_rank, other in enumerate(loaders(resumed, args)):
                    other.load_state_dict(state)
                    assert read(other) == resumed["batches_per_rank"][resumed_rank]
                    assert state_of(other) == resumed["state_at_end"]
