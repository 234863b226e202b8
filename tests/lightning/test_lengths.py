"""Lightning reads the length of a loader that no epoch has gone through."""

import pytest
import torch
from lightning_examples import Model, trainer_of
from torch.utils.data import DataLoader, RandomSampler

from fkat_data import DataLoaderFactory, ShardedDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:::torch")

SIZES = (9, 4, 7)  # 3 + 1 + 2 microbatches of 4, the rest dropped: 2 + 1 + 1
NUM_MICROBATCHES = 4


def rows(shard):
    return torch.zeros(int(shard), 1)


def drop_last(dataset, **options):
    return DataLoader(dataset, drop_last=True, **options)


@pytest.mark.parametrize(
    ("options", "num_steps", "num_estimated", "num_validated"),
    [
        ({"limit_train_batches": 0.5, "limit_val_batches": 0.25}, NUM_MICROBATCHES // 2, NUM_MICROBATCHES // 2, 1),
        ({"accumulate_grad_batches": 3}, NUM_MICROBATCHES, 2, NUM_MICROBATCHES),
    ],
)
def test_a_share_of_the_microbatches_is_that_share_and_the_number_of_steps_is_estimated(
    options, num_steps, num_estimated, num_validated
):
    factory = DataLoaderFactory(rows, RandomSampler, dataloader_generator=drop_last, batch_size=4)
    loaders = [ShardedDataLoader(7, [str(size) for size in SIZES], factory, multiprocessing=False) for _ in range(2)]
    model, trainer = Model(estimates=True), trainer_of(exact=False, num_sanity_val_steps=0, **options)
    trainer.fit(model, *loaders)
    assert len(model.seen) == 2 * num_steps
    assert trainer.estimated_stepping_batches == 2 * num_estimated
    assert len(model.evaluated) == 2 * num_validated
