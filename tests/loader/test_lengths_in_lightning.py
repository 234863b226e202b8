"""Lightning reads the length of a loader that no epoch has gone through."""

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from fkat_data import DataLoaderFactory, ShardedDataLoader

# It still calls what torch has deprecated, and warns of a machine without an accelerator.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

SIZES = (9, 4, 7)  # 3 + 1 + 2 microbatches of 4, the rest dropped: 2 + 1 + 1
NUM_MICROBATCHES = 4


class Rows:
    def __init__(self, shard):
        self.count = int(shard)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((1,), float(index))


def drop_last(dataset, **options):
    return DataLoader(dataset, drop_last=True, **options)


def loader():
    factory = DataLoaderFactory(Rows, RandomSampler, dataloader_generator=drop_last, batch_size=4)
    return ShardedDataLoader(7, [str(size) for size in SIZES], factory, multiprocessing=False)


@pytest.fixture
def fit(tmp_path):
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.num_steps = 0
            self.validated_at = []
            self.estimated = None

        def training_step(self, batch):
            self.num_steps += 1
            return self.layer(batch).sum()

        def validation_step(self, batch):
            self.validated_at.append(self.num_steps)

        def configure_optimizers(self):
            self.estimated = self.trainer.estimated_stepping_batches
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def run(**options):
        module = Module()
        trainer = Trainer(
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            default_root_dir=tmp_path,
            max_epochs=2,
            **options,
        )
        trainer.fit(module, loader(), loader())
        return module

    return run


def test_a_share_of_the_microbatches_is_that_share(fit):
    module = fit(limit_train_batches=0.5, limit_val_batches=0.25)
    assert module.num_steps == 2 * NUM_MICROBATCHES // 2 == module.estimated
    assert module.validated_at == [2, 4]


def test_the_number_of_steps_is_estimated(fit):
    module = fit(accumulate_grad_batches=3)
    assert module.num_steps == 2 * NUM_MICROBATCHES
    assert module.estimated == 2 * 2
