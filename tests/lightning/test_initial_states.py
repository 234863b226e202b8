"""What tries out a Trainer and puts it back, or trains on the same microbatches in each epoch."""

import logging

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.tuner import Tuner
from lightning_examples import Model, known, sweep, trainer_of, unknown

from fkat_data import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:::torch")


def shuffled():
    return DataLoader(list(torch.arange(20.0).reshape(10, 2)), 2, shuffle=True, seed=3)


@pytest.fixture
def loaders(streamed):
    return {"DataLoader": shuffled, "known": known, "unknown": unknown, "streamed": streamed}


class Tuned(Model):
    """A model whose loaders the finders take: batch sizes mean nothing to them."""

    def __init__(self, loader, validated):
        super().__init__()
        self.rate, self.batch_size = 0.1, 2
        self.train_dataloader, self.val_dataloader = lambda: loader, lambda: validated


def find_rate(trainer, model):
    Tuner(trainer).lr_find(model, num_training=8, attr_name="rate", early_stop_threshold=None)


def find_size(trainer, model):
    Tuner(trainer).scale_batch_size(model, max_trials=2, steps_per_trial=2)


FINDERS = {
    "Tuner.lr_find": (find_rate, ()),
    "Tuner.scale_batch_size": (find_size, ()),
    "LearningRateFinder": (
        None,
        (lambda: LearningRateFinder(num_training_steps=8, attr_name="rate", early_stop_threshold=None),),
    ),
    "BatchSizeFinder": (None, (lambda: BatchSizeFinder(max_trials=2, steps_per_trial=2),)),
}


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("kind", ["DataLoader", "known", "unknown", "streamed"])
def test_training_begins_at_the_first_microbatch_after_a_finder(tmp_path, loaders, kind, finder):
    plain, found = Model(), Tuned(loaders[kind](), shuffled())
    trainer_of().fit(plain, loaders[kind](), shuffled())
    find, callbacks = FINDERS[finder]
    trainer = trainer_of(*(make() for make in callbacks), default_root_dir=tmp_path)
    if find is not None:
        find(trainer, found)
        assert len(found.seen) >= 4
        trainer = trainer_of()
    trainer.fit(found)
    assert found.seen[-len(plain.seen) :] == plain.seen
    assert found.evaluated[-len(plain.evaluated) :] == plain.evaluated


@pytest.mark.parametrize("kind", ["DataLoader", "known", "streamed"])
def test_overfitting_sees_the_same_microbatches_in_each_epoch_and_resumes(tmp_path, loaders, kind):
    """Lightning turns the shuffle of a DataLoader off; other loaders go back to where they were."""
    whole, _, differing = sweep(tmp_path, loaders[kind], val=loaders[kind], overfit_batches=2, max_epochs=3)
    assert whole.seen == 3 * whole.seen[:2]
    assert whole.evaluated == 3 * whole.evaluated[:2]
    assert differing == {}


def test_validations_begin_at_one_position_though_their_loaders_are_asked_for_again(loaders):
    model = Model()
    trainer_of(reload_dataloaders_every_n_epochs=1, max_epochs=3).fit(model, known(), loaders["streamed"]())
    assert model.evaluated == 3 * model.evaluated[:5]


@pytest.mark.parametrize(("makes_again", "num_warnings"), [(True, 2), (False, 0)])
def test_a_hook_that_makes_its_loader_again_gets_a_word_in_the_log(caplog, makes_again, num_warnings):
    kept = shuffled()
    model = Tuned(None, None)
    model.train_dataloader = shuffled if makes_again else lambda: kept
    with caplog.at_level(logging.WARNING, "fkat_data"):
        trainer_of(reload_dataloaders_every_n_epochs=1, max_epochs=3, limit_val_batches=0).fit(model)
    assert caplog.text.count("the same order and the same random draws") == num_warnings
