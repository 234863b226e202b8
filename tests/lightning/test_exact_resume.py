"""Every step of two epochs is a checkpoint, and each resumes to the same microbatches and the same weights."""

import logging

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from lightning.pytorch.utilities import CombinedLoader
from lightning_examples import KNOWN, Model, Saver, counted, known, plain, sweep, trainer_of, unknown, weights
from loader_examples import make
from torch.utils.data import DistributedSampler

from fkat_data import DataLoader
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.mixing import DictDataLoader, RoundRobin, Weighted
from fkat_data.samplers import DistributedDataParallelShardSampler, SequenceShardSampler, ShardSampler

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:::torch")
EVERY_HOOK = (
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
)
BESIDE_THE_STEP = ("on_train_batch_start", "on_train_batch_end")
LENGTHS = {"known": known, "unknown": unknown}
OPTIONS = {
    "plain": {},
    "estimated steps": {"estimates": True},
    "two microbatches of each epoch": {"limit_train_batches": 2},
    "accumulation": {"accumulate_grad_batches": 3},
    "accumulation and estimated steps": {"accumulate_grad_batches": 2, "estimates": True},
    "counted in steps": {"max_steps": 7},
    "loaders made again": {"reload_dataloaders_every_n_epochs": 1},
    "loaders made again, estimated steps": {"reload_dataloaders_every_n_epochs": 1, "estimates": True},
}
VALIDATIONS = {
    "in the middle": {"val_check_interval": 2},
    "in the middle of an accumulation": {"val_check_interval": 2, "accumulate_grad_batches": 3},
    "across epochs": {"val_check_interval": 3, "check_val_every_n_epoch": None},
    "two microbatches, estimated steps": {"limit_val_batches": 2, "estimates": True},
    "counted in steps": {"val_check_interval": 2, "max_steps": 7},
    "of unknown length": {"val": lambda: unknown(3), "limit_val_batches": 2},
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_step_resumes_to_the_same_microbatches_and_weights(tmp_path, length, options, share_of_examples):
    whole, saver, differing = sweep(tmp_path, LENGTHS[length], share=share_of_examples, **OPTIONS[options])
    assert len(saver.places) == len(whole.seen)
    assert differing == {}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("options", VALIDATIONS)
def test_every_hook_resumes_where_validation_runs(tmp_path, length, options, share_of_examples):
    """Sanity checks come first; and each validation sees the same microbatches, with the same random draws."""
    num_validated = VALIDATIONS[options].get("limit_val_batches", 3)
    given = {"val": validated, "share": share_of_examples} | VALIDATIONS[options]
    whole, _, differing = sweep(tmp_path, LENGTHS[length], EVERY_HOOK, **given)
    assert differing == {}
    once = whole.evaluated[:num_validated]
    assert len(whole.evaluated) >= 2 * num_validated
    assert whole.evaluated == len(whole.evaluated) // num_validated * once


def validated():
    return known(3, ["map-v-6"])


SEVERAL = {
    "a dict": lambda: {"a": known(), "b": unknown()},
    "a list": lambda: [unknown(), known(5, ["map-c-4"])],
    "two of one unknown length": lambda: [unknown(), unknown(5)],
    "max_size": lambda: CombinedLoader({"a": known(), "b": unknown(5, ["stream-a-3"])}, "max_size"),
    "max_size, unknown": lambda: CombinedLoader([unknown(5, ["stream-a-3"]), unknown()], "max_size"),
    "min_size": lambda: CombinedLoader([known(), unknown(5, ["stream-a-6"])], "min_size"),
    "min_size, unknown": lambda: CombinedLoader([unknown(), unknown(5, ["stream-a-12"])], "min_size"),
    "a mixture": lambda: DictDataLoader({"a": known(), "b": unknown()}, RoundRobin(["a", "b"]), key=None),
    "a mixture that restarts": lambda: DictDataLoader(
        {"a": known(), "b": unknown(5, ["stream-a-3"])}, RoundRobin(["a", "b"]), key=None, on_exhausted="restart"
    ),
}


@pytest.mark.parametrize("loaders", SEVERAL)
def test_several_loaders_resume_together(tmp_path, loaders, share_of_examples):
    whole, _, differing = sweep(tmp_path, SEVERAL[loaders], BESIDE_THE_STEP, share=share_of_examples)
    assert len(whole.seen) >= 6
    assert differing == {}


class Curriculum(pl.Callback):
    """Sets weights, while Lightning has fetched microbatches that were drawn by those before."""

    def on_train_batch_end(self, trainer, module, *_):
        weights = {2: (1, 9), 3: (9, 1), 8: (1, 9)}.get(trainer.global_step)
        if weights is not None:
            trainer.train_dataloader.set_weights(dict(zip("ab", weights, strict=True)))


@pytest.mark.parametrize("second", [known, unknown])
def test_weights_that_are_set_behind_what_was_fetched_are_in_the_checkpoint(tmp_path, second):
    def mixture():
        return DictDataLoader({"a": known(), "b": second(5)}, Weighted({"a": 1, "b": 1}, seed=2), key=None)

    whole, _, differing = sweep(tmp_path, mixture, BESIDE_THE_STEP, more_callbacks=lambda: [Curriculum()])
    assert len(whole.seen) >= 18
    assert differing == {}


def test_two_loaders_of_one_unknown_length_lose_no_epoch():
    """Lightning begins the first one's next epoch before it looks at the second one, and drops that microbatch."""
    model = Model()
    trainer_of(max_epochs=2).fit(model, [unknown(), unknown(5)])
    alone = unknown()
    assert [microbatches[0] for microbatches in model.seen] == [plain(one) for _ in range(2) for one in alone]


@pytest.mark.parametrize(
    "options", ["plain", "estimated steps", "two microbatches of each epoch", "loaders made again"]
)
def test_streaming_loaders_resume(tmp_path, streamed, options):
    whole, saver, differing = sweep(tmp_path, streamed, BESIDE_THE_STEP, **OPTIONS[options])
    assert len(saver.places) == 2 * len(whole.seen)
    assert whole.seen[: len(whole.seen) // 2] != whole.seen[len(whole.seen) // 2 :]
    assert differing == {}


def test_a_training_step_that_fetches_by_itself_resumes(tmp_path):
    class Fetching(Model):
        def training_step(self, dataloader_iter):
            microbatch, _, _ = next(dataloader_iter)
            return super().training_step(microbatch, 0)

    _, _, differing = sweep(tmp_path, unknown, make_model=Fetching)
    assert differing == {}


@pytest.mark.parametrize("length", LENGTHS)
def test_a_training_that_an_exception_ended_resumes_with_that_microbatch(tmp_path, length):
    """The last one of an epoch, too, which Lightning takes for done."""

    class Failing(Model):
        fails_at = None

        def training_step(self, microbatch, index):
            if len(self.seen) == self.fails_at:
                raise RuntimeError("failed")
            return super().training_step(microbatch, index)

    whole = Failing()
    trainer_of().fit(whole, LENGTHS[length]())
    for fails_at in range(len(whole.seen)):
        first, second = Failing(), Failing()
        first.fails_at = fails_at
        with pytest.raises(RuntimeError, match="failed"):
            trainer_of(OnExceptionCheckpoint(tmp_path, f"{fails_at}")).fit(first, LENGTHS[length]())
        trainer_of().fit(second, LENGTHS[length](), ckpt_path=tmp_path / f"{fails_at}.ckpt")
        assert first.seen + second.seen == whole.seen
        assert weights(second) == weights(whole)


def test_an_accumulation_that_is_scheduled_by_epochs_resumes(tmp_path):
    """Lightning asks the scheduler when an epoch begins, and not in the middle of one."""
    _, _, differing = sweep(tmp_path, known, more_callbacks=lambda: [GradientAccumulationScheduler({0: 2, 1: 3})])
    assert differing == {}


@pytest.mark.parametrize("length", LENGTHS)
def test_an_epoch_that_was_stopped_early_is_over_for_the_loaders_as_well(tmp_path, length, caplog):
    class Stopping(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step == 2

    first, second, whole = Model(), Model(), Model()
    trainer = trainer_of(Stopping())
    trainer.fit(first, LENGTHS[length]())
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    trainer_of(max_epochs=1).fit(whole, LENGTHS[length]())
    loader = LENGTHS[length]()
    epochs = [[plain(one) for one in loader] for _ in range(2)]
    with caplog.at_level(logging.INFO):
        trainer_of().fit(second, LENGTHS[length](), ckpt_path=tmp_path / "stopped.ckpt")
    assert first.seen == epochs[0][:2]
    assert second.seen == epochs[1]
    assert "the epoch was stopped after 2 microbatches" in caplog.text


def test_early_stopping_by_a_metric_stops_at_the_same_step(tmp_path):
    options = {"val": validated, "val_check_interval": 2, "max_epochs": 3}
    whole, saver, differing = sweep(
        tmp_path, known, more_callbacks=lambda: [EarlyStopping("val", patience=0, min_delta=1e9)], **options
    )
    assert len(whole.seen) == 4
    assert differing.keys() <= {saver.places[-1][2].name}  # which was saved before the metric was looked at


def test_checkpoints_of_model_checkpoint_and_a_longer_run(tmp_path):
    """A run of one epoch goes on to three, after its end and from Lightning's own last checkpoint."""
    first, second, third, whole = (Model() for _ in range(4))
    trainer_of(max_epochs=3).fit(whole, unknown())
    saving = ModelCheckpoint(tmp_path, save_last=True)
    trainer = trainer_of(saving, max_epochs=1)
    trainer.fit(first, unknown())
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    trainer_of(max_epochs=3).fit(second, unknown(), ckpt_path=tmp_path / "after.ckpt")
    trainer_of(max_epochs=3).fit(third, unknown(), ckpt_path=saving.last_model_path)
    assert first.seen + second.seen == first.seen + third.seen == whole.seen
    assert weights(second) == weights(third) == weights(whole)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_checkpoint_after_a_run_that_its_steps_have_ended_resumes(tmp_path, length):
    """Lightning has fetched one microbatch more than it trained on, and has no fetcher any more."""
    whole = Model()
    trainer_of(max_epochs=2).fit(whole, LENGTHS[length]())
    for num_steps in range(1, len(whole.seen)):
        first, second = Model(), Model()
        trainer = trainer_of(max_steps=num_steps, max_epochs=-1)
        trainer.fit(first, LENGTHS[length]())
        trainer.save_checkpoint(tmp_path / "after.ckpt")
        trainer_of(max_steps=len(whole.seen), max_epochs=-1).fit(
            second, LENGTHS[length](), ckpt_path=tmp_path / "after.ckpt"
        )
        assert first.seen + second.seen == whole.seen
        assert weights(second) == weights(whole)


def test_a_second_fit_of_one_trainer_goes_on_with_its_loaders():
    model, loader = Model(), unknown()
    trainer = trainer_of(max_epochs=1)
    trainer.fit(model, loader)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader)
    alone = unknown()
    assert model.seen == [plain(one) for _ in range(2) for one in alone]


def test_workers_and_loaders_of_the_model_resume(tmp_path, processes):
    class Own(Model):
        loader = None

        def train_dataloader(self):
            self.loader = make(KNOWN, counted, multiprocessing=True, num_shard_prefetches=1)
            return self.loader

    first, second, whole = Own(), Own(), Model()
    trainer_of().fit(whole, known())
    saver = Saver(tmp_path, ("on_train_batch_end",))
    trainer_of(saver).fit(first)
    trainer_of().fit(second, ckpt_path=saver.places[6][2])
    assert first.seen == whole.seen
    assert second.seen == whole.seen[7:]
    for model in (first, second):
        model.loader.close()


def test_another_number_of_ranks_shares_what_was_left(tmp_path, monkeypatch):
    """A checkpoint of one rank, loaded as each of two: together they train on the rest, each microbatch once."""

    def split(dp_size, dp_rank):
        shards = SequenceShardSampler(["map-a-4", "map-b-4", "map-c-4", "map-d-4"])
        sampler = DistributedDataParallelShardSampler(shards, dp_size=dp_size, dp_rank=dp_rank)
        return make(sampler, counted, seed=7)

    saver, whole = Saver(tmp_path, ("on_train_batch_end",)), Model()
    trainer_of(saver, max_epochs=1).fit(whole, split(1, 0))
    num_seen, _, path = saver.places[3]
    shares = [Model(), Model()]
    for rank, model in enumerate(shares):
        monkeypatch.setattr(pl.Trainer, "distributed_sampler_kwargs", {"num_replicas": 2, "rank": rank})
        trainer_of(max_epochs=1).fit(model, split(2, rank), ckpt_path=path)
    together = shares[0].seen + shares[1].seen
    assert sorted(together) == sorted(whole.seen[num_seen:])
    assert len(shares[0].seen) == len(shares[1].seen) == 2


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_loader_for_another_number_of_ranks_is_refused(is_mixed):
    sampler = DistributedDataParallelShardSampler(SequenceShardSampler(KNOWN), dp_size=2, dp_rank=0)
    loader = make(sampler, counted)
    if is_mixed:
        loader = DictDataLoader({"a": loader}, RoundRobin(["a"]), key=None)
    with pytest.raises(ConfigurationError, match=r"dp_size.*train_dataloader"):
        trainer_of().fit(Model(), loader)


def test_a_loader_that_knows_no_rank_gets_a_word_in_the_log(caplog, monkeypatch):
    """One process that plays the second of two ranks."""
    with_rank = DataLoader(list(torch.ones(4, 2)), sampler=DistributedSampler(range(4), num_replicas=2, rank=1))
    without = DataLoader(list(torch.ones(4, 2)))
    monkeypatch.setattr(pl.Trainer, "distributed_sampler_kwargs", {"num_replicas": 2, "rank": 1})
    trainer_of(max_epochs=1).fit(Model(), with_rank)
    assert "knows no rank" not in caplog.text
    for loader in (known(), without, DictDataLoader({"a": without}, RoundRobin(["a"]), key=None)):
        caplog.clear()
        trainer_of(max_epochs=1).fit(Model(), loader)
        assert caplog.text.count("knows no rank") == 1


def test_a_checkpoint_of_other_loaders_is_refused(tmp_path):
    saver = Saver(tmp_path, ("on_train_batch_end",))
    trainer_of(saver, max_epochs=1).fit(Model(), known())
    with pytest.raises(StateMismatchError, match=r"loaders.*2"):
        trainer_of().fit(Model(), [known(), unknown()], ckpt_path=saver.places[0][2])


@pytest.mark.parametrize("options", ["plain", "estimated steps"])
def test_a_checkpoint_that_was_saved_without_the_callback_resumes(tmp_path, options, caplog):
    """As exactly as Lightning saved it: where the length is known."""
    saver, whole = Saver(tmp_path, ("on_train_batch_end",)), Model()
    trainer_of(saver, exact=False).fit(whole, known())
    for num_seen, _, path in saver.places:
        model = Model(estimates=options != "plain")
        trainer_of().fit(model, known(), ckpt_path=path)
        assert model.seen == whole.seen[num_seen:], path.name
    assert "saved without ExactResume" in caplog.text


def test_a_checkpoint_resumes_without_the_callback_as_well(tmp_path):
    """What Lightning saves and loads by itself is right then, in the middle of an epoch."""
    saver, whole = Saver(tmp_path, ("on_train_batch_end",)), Model()
    trainer_of(saver).fit(whole, unknown())
    for num_seen, _, path in [place for place in saver.places if place[0] % 4]:  # where Lightning loads it
        model = Model()
        trainer_of(exact=False).fit(model, unknown(), ckpt_path=path)
        assert model.seen == whole.seen[num_seen:], path.name


def test_nothing_of_the_trainer_stays_changed():
    trainer = trainer_of()
    trainer.fit(Model(), known(), validated())
    assert trainer.train_dataloader.__class__ is type(known())


# What Lightning does by itself: these hold what the how-to says of it, and fail when a release has repaired it.


@pytest.mark.parametrize(
    ("length", "options", "lost"),
    [
        ("known", "plain", []),
        ("known", "estimated steps", list(range(1, 10))),
        ("known", "two microbatches of each epoch", [2]),
        ("known", "accumulation", [1, 2, 4, 6, 7, 9]),
        ("unknown", "plain", [1, 2, 3]),
    ],
)
def test_the_loader_alone_is_exact_but_where_the_how_to_says_so(tmp_path, length, options, lost):
    _, saver, differing = sweep(tmp_path, LENGTHS[length], exact=False, **OPTIONS[options])
    assert sorted(place[0] for place in saver.places if place[2].name in differing) == lost


def test_the_gradients_of_an_accumulation_are_in_the_checkpoint(tmp_path):
    saver = Saver(tmp_path, ("on_train_batch_end",))
    trainer_of(saver, accumulate_grad_batches=2).fit(Model(), known())
    found = [torch.load(path)["callbacks"]["ExactResume"]["gradients"] for _, _, path in saver.places]
    assert [bool(gradients) for gradients in found] == [True, False, True, False, False] * 2


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, [2, 5, 3]),
        ({"limit_train_batches": 0.7, "accumulate_grad_batches": 2, "estimates": True}, [1, 3, 2]),
    ],
)
def test_epochs_of_unequal_length_are_trained_on_to_their_ends_and_resume(tmp_path, options, numbers):
    """One epoch has 2 microbatches, the next one 5, and the third 3; of a share, the share of each."""
    epochs = [["map-b-3"], ["map-a-5", "map-b-3"], ["map-a-5"]]

    class Uneven(ShardSampler):
        def shards(self, epoch):
            return epochs[epoch % 3]

    hooks = ("on_train_batch_start", "on_train_batch_end", "on_train_epoch_end")
    _, saver, differing = sweep(tmp_path, lambda: known(shards=Uneven()), hooks, max_epochs=3, **options)
    ends = [num_seen for num_seen, _, path in saver.places if "on_train_epoch_end" in path.name]
    assert ends == [sum(numbers[: epoch + 1]) for epoch in range(3)]
    assert differing == {}


class Pairs(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(14.0).reshape(7, 2))


@pytest.mark.parametrize("kind", ["indices", "iterable"])
def test_a_data_loader_resumes_at_every_step(tmp_path, kind, share_of_examples):
    def loader():
        if kind == "iterable":
            return DataLoader(Pairs(), 2, seed=3)
        return DataLoader(list(torch.arange(14.0).reshape(7, 2)), 2, shuffle=True, seed=3)

    whole, _, differing = sweep(tmp_path, loader, share=share_of_examples)
    assert len(whole.seen) == 8
    assert differing == {}
