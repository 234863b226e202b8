"""The flat numbers go through the loggers of others; scripts/loggers has the heavy ones."""

import pytest
from loader_examples import epoch, make


def test_tensorboard_takes_the_flat_numbers_as_they_are(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    loader = make(["list-a-3"])
    epoch(loader)
    numbers = loader.statistics().as_dict()
    with SummaryWriter(str(tmp_path)) as writer:
        for name, value in numbers.items():
            writer.add_scalar(f"loader/{name}", value, 3)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert {tag.removeprefix("loader/") for tag in found.Tags()["scalars"]} == set(numbers)
    (event,) = found.Scalars("loader/making_p99_s")
    assert (event.step, event.value) == (3, pytest.approx(numbers["making_p99_s"]))
