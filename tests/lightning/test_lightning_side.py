"""Loaders that Lightning makes again, with the functions that it does so with; and what its loggers learn of them."""

import logging
import os
import pickle
from itertools import islice
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from drop_in_examples import Drawing
from lightning.fabric.utilities.data import _replace_dunder_methods, _update_dataloader
from lightning.fabric.wrappers import _FabricDataLoader
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import CombinedLoader
from lightning_examples import Augmented, Model, known, trainer_of, unknown
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, RandomSampler
from walks import begun, gathered

from fkat_data import ConfigurationError, DataLoader, DataLoaderFactory, ShardedDataLoader, StateMismatchError
from fkat_data.lightning import StatisticsCallback
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:::torch")
COUNT = 13


class Processes(Augmented):
    """Samples that say which process made them."""

    def __getitem__(self, index):
        return torch.tensor([os.getpid()])


def dealt(loader, rank=0, num_ranks=2):
    """The loader that Lightning makes of another one on a rank of some."""
    return _update_dataloader(loader, DistributedSampler(loader.dataset, num_ranks, rank, shuffle=True))


def rows(loader):
    return [batch.tolist() for batch in loader]


def test_a_loader_goes_on_in_the_next_epoch_when_it_is_made_again():
    """`reload_dataloaders_every_n_epochs`: the order is Lightning's sampler's; random draws are the epoch's."""
    original, kept = (DataLoader(Augmented(), 2, seed=3) for _ in range(2))
    kept = dealt(kept)
    for _ in range(3):
        assert rows(dealt(original)) == rows(kept)


def test_a_loader_without_a_seed_keeps_the_one_that_was_drawn():
    original = DataLoader(Drawing(4), 2)
    first = dealt(original)
    assert list(first)
    again = dealt(original)
    seeds = [loader.local_state_dict()["place"][0]["seed"] for loader in (again, first)]
    assert seeds[0] == seeds[1]
    assert again.epoch == 1


def test_workers_stay_from_epoch_to_epoch_and_end_with_the_loader_that_was_made_again(nothing_left_behind, processes):
    """Lightning passes on torch's `persistent_workers`, which is False where the user said nothing."""

    def workers(loader):
        return {int(row[0]) for batch in loader for row in batch}

    with DataLoader(Processes(), 2, num_workers=1, start_method="template") as original:
        made = dealt(original)
        assert workers(made) == workers(made)


def test_a_look_at_the_first_microbatch_in_a_hook_changes_nothing():
    """Lightning sets again, in the loader that it makes, each attribute that was set in the hook."""
    with _replace_dunder_methods(TorchDataLoader, "dataset"):
        original = DataLoader(Augmented(), batch_size=2, shuffle=True, seed=3)
        assert len(original) == 7
        next(iter(original))
    seen = [int(row[0]) for rank in range(2) for batch in rows(dealt(original, rank)) for row in batch]
    assert sorted(set(seen)) == list(range(COUNT))


def test_a_state_that_was_loaded_before_counts_in_the_loader_that_is_made_again():
    whole = dealt(DataLoader(Augmented(), 2, seed=3))
    iterator = begun(whole, 1)
    state, rest = whole.state_dict(), [batch.tolist() for batch in iterator]
    original = DataLoader(Augmented(), 2, seed=3)
    original.load_state_dict(state)
    assert rows(dealt(original)) == rest


@pytest.mark.parametrize("is_shuffled_state", [True, False])
def test_a_position_within_the_order_of_another_kind_of_sampler_is_refused(is_shuffled_state):
    shuffled = DataLoader(Augmented(), 2, shuffle=True, seed=3)
    saving, loading = (shuffled, dealt(shuffled)) if is_shuffled_state else (dealt(shuffled), shuffled)
    next(iter(saving))
    loading.load_state_dict(saving.state_dict())
    with pytest.raises(StateMismatchError, match="DistributedSampler"):
        next(iter(loading))


def told(loader, epoch):
    """Set the epoch as Lightning does: before an epoch of a run, and behind the first microbatch of a resumed one."""
    loader.sampler.set_epoch(epoch)
    return loader


@pytest.mark.parametrize("saver", [0, 1])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_resumed_epoch_is_the_one_that_was_left_though_lightning_sets_it_too_late(saver, num_ranks):
    def ranks_of(number):
        return [dealt(DataLoader(Augmented(), 1, shuffle=True, seed=3), rank, number) for rank in range(number)]

    def samples(batches):
        return [int(row[0]) for batch in batches for row in batch]

    begun_ranks, had = ranks_of(2), []
    for loader in begun_ranks:
        list(told(loader, 0))
        had += samples(islice(told(loader, 1), 2))
    resumed = ranks_of(num_ranks)
    for loader in resumed:
        loader.load_state_dict(begun_ranks[saver].state_dict())
        batches = iter(loader)
        had += samples([next(batches)])
        had += samples(told(loader, 1) and batches)
    assert set(had) == set(range(COUNT))
    assert len(had) < COUNT + num_ranks


@pytest.mark.parametrize("rank", [0, 1])
def test_what_fabric_sets_up_resumes_at_every_microbatch(rank):
    """Fabric tells the sampler an epoch that it counts from 0 in each process."""

    def set_up():
        loader = dealt(DataLoader(Augmented(), 2, shuffle=True, seed=3), rank)
        return loader, _FabricDataLoader(loader)

    loader, fabrics = set_up()
    whole, states = [], [loader.state_dict()]
    for _ in range(3):
        for batch in fabrics:
            whole.append(batch.tolist())
            states.append(loader.state_dict())
    assert whole[:4] != whole[4:8]
    for step in range(0, len(whole), 3):
        loader, fabrics = set_up()
        loader.load_state_dict(states[step])
        rest = []
        while len(rest) < len(whole) - step:
            rest += rows(fabrics)
        assert rest == whole[step:]


def test_what_fabric_sets_up_goes_on_with_other_numbers_of_ranks():
    seen, state = [], None
    for num_ranks, num_steps in ((2, 2), (3, 1), (1, 9)):
        loaders = [dealt(DataLoader(Augmented(), 1, shuffle=True), rank, num_ranks) for rank in range(num_ranks)]
        for loader in loaders:
            fabrics = _FabricDataLoader(loader)
            if state is None:
                list(fabrics)  # a first epoch
            else:
                loader.load_state_dict(state)
            seen += [int(row[0]) for batch in islice(fabrics, num_steps) for row in batch.tolist()]
        state = gathered(loaders)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True}, {"drop_last": True}, {"sampler": [5, 1, 3, 0, 2, 7]}],
    ids=str,
)
def test_predictions_are_of_each_sample_with_its_index(options):
    """Lightning makes the loader again, with a batch sampler that is its own iterator and notes the indices."""

    class Writer(BasePredictionWriter):
        indices = None

        def write_on_epoch_end(self, trainer, module, predictions, indices):
            self.indices = indices

    class Predicting(pl.LightningModule):
        def predict_step(self, batch, index):
            return batch[:, 0].int().tolist()

    writer = Writer("epoch")
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[writer])
    with DataLoader(Augmented(), 4, **options) as loader:
        found = trainer.predict(Predicting(), loader)
    assert [found] == writer.indices
    assert sorted(index for indices in found for index in indices) == sorted(options.get("sampler", range(COUNT)))


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_combined_loader_under_iteration_is_pickled(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"number": "int"}) as writer:
        for number in range(COUNT):
            writer.write({"number": number})
    loaders = [
        DataLoader(Augmented(), 2),
        DataLoader(Augmented(), 2, shuffle=True),
        StreamingDataLoader(StreamingDataset(local=str(tmp_path)), batch_size=2),
    ]
    combined = CombinedLoader(loaders, "max_size")
    rest = begun(combined, 1)
    copied = pickle.loads(pickle.dumps(combined))
    assert [None not in batches for batches, _, _ in copied] == [True] * 7
    assert [next(rest)[1] for _ in range(6)] == list(range(1, 7))
    sharded = CombinedLoader([ShardedDataLoader(1, ["0"], range, multiprocessing=False)])
    iter(sharded)
    with pytest.raises(TypeError, match="a ShardedDataLoader cannot be pickled or copied"):
        pickle.dumps(sharded)


# Lightning reads the length of a loader that no epoch has gone through.
SIZES = (9, 4, 7)  # 3 + 1 + 2 microbatches of 4, the rest dropped: 2 + 1 + 1
NUM_MICROBATCHES = 4


def zeros(shard):
    return torch.zeros(int(shard), 1)


def drop_last(dataset, **options):
    return TorchDataLoader(dataset, drop_last=True, **options)


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
    factory = DataLoaderFactory(zeros, RandomSampler, dataloader_generator=drop_last, batch_size=4)
    loaders = [ShardedDataLoader(7, [str(size) for size in SIZES], factory, multiprocessing=False) for _ in range(2)]
    model, trainer = Model(estimates=True), trainer_of(exact=False, num_sanity_val_steps=0, **options)
    trainer.fit(model, *loaders)
    assert len(model.seen) == 2 * num_steps
    assert trainer.estimated_stepping_batches == 2 * num_estimated
    assert len(model.evaluated) == 2 * num_validated


class Remembering(Logger):
    """Keeps what it is given."""

    name, version = "remembering", "0"

    def __init__(self):
        super().__init__()
        self.metrics, self.texts = [], []
        self.experiment = SimpleNamespace(add_text=lambda *given: self.texts.append(given))

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, {name: value for name, value in metrics.items() if name.startswith("loader")}))

    def log_hyperparams(self, *given):
        pass


def test_numbers_and_the_verdict_go_to_the_logger(caplog):
    logger = Remembering()
    with caplog.at_level(logging.INFO, "fkat_data"):
        trainer_of(StatisticsCallback(), exact=False, logger=logger, log_every_n_steps=2).fit(Model(), known())
    logged = [(step, metrics) for step, metrics in logger.metrics if metrics]
    assert [step for step, _ in logged] == [2, 4, 7, 9]
    assert [metrics["loader/delivered"] for _, metrics in logged] == [2, 2, 2, 2]
    assert all(0 <= metrics["loader/waited_share"] <= 1 for _, metrics in logged)
    assert [(name, step) for name, _, step in logger.texts] == [("loader/verdict", 5), ("loader/verdict", 10)]
    assert caplog.text.count("the trainer waited") == 2


def test_several_loaders_have_numbers_of_their_own():
    logger = Remembering()
    loaders = {"a": known(), "plain": [0] * 5, "b": unknown()}
    callback = StatisticsCallback("data")
    logger.log_metrics = lambda metrics, step=None: logger.metrics.append((step, metrics))

    class Deaf(Model):
        def training_step(self, microbatch, index):
            return super().training_step({name: microbatch[name] for name in "ab"}, index)

    trainer_of(callback, exact=False, logger=logger, log_every_n_steps=2, max_epochs=1).fit(Deaf(), loaders)
    names = {name.rpartition("/")[0] for _, metrics in logger.metrics for name in metrics if "/" in name}
    assert names == {"data/0", "data/2"}


def test_a_loader_whose_microbatches_the_caller_commits_is_refused():
    loader = DataLoader(list(torch.arange(20.0).reshape(10, 2)), 2, commit="manual")
    with pytest.raises(ConfigurationError, match=r"commit.*Lightning"):
        dealt(loader)
    with pytest.raises(ConfigurationError, match=r"commit.*Lightning"):
        trainer_of().fit(Model(), loader)
