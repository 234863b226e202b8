"""What a signal's handler raises in a loop over a stream ends one call, and the loop goes on where it was."""

from functools import partial

import pytest
from own_datasets import Iterated
from streaming_examples import write

from fkat_data import DataLoader
from fkat_data.streaming import StreamingDataset


class Doubled(StreamingDataset):
    def __getitem__(self, index):
        return {"number": 2 * super().__getitem__(index)["number"]}


def make(path, kind):
    return DataLoader(kind(local=path, batch_size=4, shuffle=True, shuffle_algo="block", num_canonical_nodes=2), 4)


@pytest.mark.long
@pytest.mark.parametrize("share", [40, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize("kind", [StreamingDataset, Doubled, Iterated])
def test_the_loop_goes_on_where_it_was(tmp_path, kind, share):
    from front_door_sweep import sweep_beside
    from interruption_sweep import Interruptions, Preempted

    interruptions = Interruptions(Preempted, share)
    sweep_beside(partial(make, write(tmp_path / "numbers", 31), kind), interruptions)
    assert interruptions.num_raised > 5
