from itertools import islice
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from streaming_examples import numbers

from fkat_data.configuration import instantiate
from fkat_data.errors import ConfigurationError
from fkat_data.streaming import StreamingDataLoader, StreamingDataset, open_epoch

PAGE = Path(__file__).parents[2] / "docs" / "streaming" / "index.md"


@pytest.mark.usefixtures("processes")
def test_the_documented_configuration_reads_epochs_and_resumes(data, nothing_left_behind):
    config = OmegaConf.create(PAGE.read_text().partition("```yaml\n")[2].partition("```")[0])
    config.dataloader_factory.dataset_generator.local = data
    dataset = StreamingDataset(local=data, batch_size=32, shuffle=True, shuffle_algo="block")
    expected = [batch for _ in range(3) for batch in numbers(StreamingDataLoader(dataset))]
    for stop in (4, 6):  # at the end of the first epoch, and in the next one
        with instantiate(config) as loader:
            first = numbers(islice(loader, stop))
            state = loader.state_dict()
        with instantiate(config) as resumed:
            resumed.load_state_dict(state)
            assert first + numbers(resumed) == expected


@pytest.mark.parametrize("epoch", ["first", "-1", 1, ""])
def test_a_shard_that_is_no_epoch_is_refused(data, epoch):
    with pytest.raises(ConfigurationError, match="epoch"):
        open_epoch(epoch, local=data)
