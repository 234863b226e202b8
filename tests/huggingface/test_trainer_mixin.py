"""The ``Trainer`` of transformers: a checkpoint at each step, and each resumes to the same data and weights."""

import importlib
import shutil

import pytest
from huggingface_examples import (
    NUM_TOKENS,
    EndlessLookingRows,
    Rows,
    data_loader,
    rows,
    sharded,
    streaming,
    write_streams,
)

from fkat_data import ConfigurationError, StateMismatchError
from fkat_data.huggingface import last_checkpoint


@pytest.fixture
def trainers():
    """Return what makes Trainers; who only collects the tests need not import it."""
    return importlib.import_module("trainer_examples")


#: What makes the loader of a folder, and the Trainer's arguments.
KINDS = {
    "sharded": (lambda folder: sharded(), {}),
    "sharded, steps": (lambda folder: sharded(), {"max_steps": 6, "gradient_accumulation_steps": 5}),
    "sharded, no length": (lambda folder: sharded(EndlessLookingRows), {"max_steps": 6}),
    "sharded, one microbatch a step": (lambda folder: sharded(), {"gradient_accumulation_steps": 1, "max_steps": 14}),
    "streaming": (streaming, {}),
    "DataLoader": (lambda folder: data_loader(), {}),
    "own loaders": (
        lambda folder: rows(),
        {"max_steps": 7, "eval_strategy": "epoch", "eval_dataset": [0]},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_checkpoint_resumes_to_the_same_data_and_weights(kind, tmp_path, some, trainers):
    write_streams(tmp_path / "streams")
    make, settings = KINDS[kind]
    if kind == "own loaders":
        settings = {**settings, "trainer_class": trainers.WithLoaders}
    run = trainers.trained(tmp_path / "run", make(tmp_path / "streams"), **settings)
    num_steps = run.state.global_step
    delivered = [number for _, tokens in run.records for number in tokens[::3]]
    counts = [delivered.count(number) for number in range(NUM_TOKENS)]
    assert max(counts) - min(counts) <= 1
    if "max_steps" not in settings:
        assert set(counts) == {2}
    for step in some(range(1, num_steps), 2):
        Rows.loaded = 0
        checkpoint = tmp_path / "run" / f"checkpoint-{step}"
        resumed = trainers.check_resumed(
            run, checkpoint, step, tmp_path / "resumed", make(tmp_path / "streams"), **settings
        )
        assert trainers.weights(resumed) == trainers.weights(run)
        assert resumed.state.global_step == num_steps
        if kind == "sharded":
            assert Rows.loaded == sum(len(tokens) // 3 for _, tokens in resumed.records)


def test_loaders_of_evaluations_go_on_with_their_epochs(tmp_path, trainers):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 3}
    run = trainers.trained(tmp_path / "run", sharded(), eval_dataset={"a": sharded(), "b": sharded()}, **settings)
    drawn = [[record for record in run.evaluated if record[0] == step] for step in (1, 2, 3)]
    assert [len(records) for records in drawn] == [2 * 12] * 3
    assert [tokens for _, tokens in drawn[0][:12]] == [tokens for _, tokens in drawn[0][12:]]  # a, then b
    assert [tokens for _, tokens in drawn[0]] != [tokens for _, tokens in drawn[1]]
    resumed = trainers.trainer(tmp_path / "other", sharded(), eval_dataset={"a": sharded(), "b": sharded()}, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert resumed.evaluated == drawn[1] + drawn[2]
    assert len(resumed.predict(sharded()).predictions) == NUM_TOKENS


def test_a_torn_checkpoint_is_passed_over_and_a_foreign_one_refused(tmp_path, trainers):
    run = trainers.trained(tmp_path, sharded(), max_steps=4)
    assert last_checkpoint(tmp_path / "none") is None
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4, "ep')
    (tmp_path / "checkpoint-3" / "rng_state.pth").write_bytes(b"PK")
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    trainers.check_resumed(run, True, 2, tmp_path, sharded(), max_steps=4)
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}" / "fkat_data_loaders.pt").unlink()
    with pytest.raises(ConfigurationError, match="does not say where the loader goes on"):
        trainers.trainer(tmp_path, sharded(), max_steps=4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    with pytest.raises(ConfigurationError, match="a whole checkpoint in"):
        trainers.trainer(tmp_path, sharded(), max_steps=4).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("dataset", [Rows, EndlessLookingRows])
def test_a_checkpoint_between_two_updates_has_the_position_before_the_incomplete_one(dataset, tmp_path, trainers):
    stopped = trainers.trainer(tmp_path, sharded(dataset), max_steps=6, save_strategy="no")
    stopped.add_callback(trainers.StopBetween())
    stopped.train()
    assert len(stopped.records) == 3 + 1
    full = trainers.trained(tmp_path / "other", sharded(dataset), max_steps=6, save_strategy="no")
    trainers.check_resumed(full, tmp_path / "checkpoint-1", 1, tmp_path / "other", sharded(dataset), max_steps=6)


def test_microbatches_that_no_update_has_at_an_epochs_end_come_again(tmp_path, trainers):
    """Of an epoch without a length, the Trainer keeps the last gradients for the next one; a checkpoint does not."""
    settings = {"max_steps": 6, "gradient_accumulation_steps": 5}
    run = trainers.trained(tmp_path, sharded(EndlessLookingRows), save_strategy="epoch", **settings)
    trainers.check_resumed(
        run, tmp_path / "checkpoint-2", 2, tmp_path / "other", sharded(EndlessLookingRows), **settings
    )


def test_a_loader_that_passes_by_the_mixin_is_refused(tmp_path, trainers):
    hidden = trainers.trainer(tmp_path, rows(), max_steps=2)
    hidden.get_train_dataloader = sharded
    with pytest.raises(ConfigurationError, match=r"get_train_dataloader.*a method of the Trainer's class"):
        hidden.train()
    with pytest.raises(TypeError, match=r"class Behind\(ExactResumeMixin, Trainer\)"):
        trainers.define_behind()
    settings = {"trainer_class": trainers.Before, "max_steps": 4}
    run = trainers.trained(tmp_path, rows(), **settings)
    trainers.check_resumed(run, tmp_path / "checkpoint-2", 2, tmp_path / "other", rows(), **settings)


def test_a_checkpoint_of_other_loaders_alone_is_refused(tmp_path, trainers):
    settings = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 5, "max_steps": 1}
    trainers.trained(tmp_path, Rows("0"), eval_dataset=sharded(), eval_strategy="steps", eval_steps=1, **settings)
    with pytest.raises(ConfigurationError, match="the train loader's position"):
        trainers.trainer(tmp_path, sharded(), max_steps=2).train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-1" / "fkat_data_loaders.pt").unlink()
    with pytest.raises(ConfigurationError, match="the train loader's position"):
        trainers.trainer(tmp_path, rows(), trainer_class=trainers.WithLoaders, max_steps=2).train(
            resume_from_checkpoint=True
        )


def test_arguments_without_effect_are_named(tmp_path, caplog, trainers):
    trainers.trained(tmp_path, sharded(), max_steps=1)
    assert not caplog.messages
    trainers.trainer(tmp_path, data_loader(), max_steps=1, dataloader_num_workers=2, data_seed=4).train()
    first, second = caplog.messages
    assert "dataloader_num_workers=2" in first
    assert "data_seed=4" in first
    assert "per_device_train_batch_size=2" in second


def test_what_would_lose_data_is_refused(tmp_path, trainers):
    run = trainers.trained(tmp_path, sharded(), max_steps=2)
    with pytest.raises(StateMismatchError, match="gradient_accumulation_steps of the run that saved"):
        trainers.trainer(tmp_path, sharded(), max_steps=4, gradient_accumulation_steps=2).train(
            resume_from_checkpoint=True
        )
    with pytest.raises(ConfigurationError, match="ignore_data_skip"):
        trainers.trainer(tmp_path, sharded(), max_steps=4, ignore_data_skip=True).train(resume_from_checkpoint=True)
    failed = trainers.trainer(tmp_path / "again", sharded(), max_steps=2, ignore_data_skip=True)
    with pytest.raises(ConfigurationError, match="ignore_data_skip"):
        failed.train(resume_from_checkpoint=tmp_path / "checkpoint-1")
    failed.train()
    assert failed.records == run.records
    with pytest.raises(ConfigurationError, match="auto_find_batch_size"):
        trainers.trainer(tmp_path, sharded(), max_steps=4, auto_find_batch_size=True).train()
    write_streams(tmp_path / "streams")
    with pytest.raises(ConfigurationError, match=r"StreamingDataLoader\(dataset"):
        trainers.trainer(tmp_path, streaming(tmp_path / "streams").dataset, max_steps=4).train()


def test_the_trainer_alone_refuses_what_it_would_do_wrong(tmp_path, trainers):
    """It goes on at an epoch's start where the seed says the order, and nowhere else."""
    for seed in (None, 3):
        settings = {"trainer_class": trainers.WithoutMixin, "data_seed": seed, "max_steps": 5}
        run = trainers.trained(tmp_path, rows(), **settings)
        with pytest.raises(ConfigurationError, match=r"skip_first_batches.*ExactResumeMixin"):
            trainers.trainer(tmp_path, rows(), **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        resumed = trainers.trainer(tmp_path, rows(), **settings)
        if seed is None:
            with pytest.raises(ConfigurationError, match="needs the seed of"):
                resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        else:
            resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
            assert trainers.weights(resumed) == trainers.weights(run)


def test_other_datasets_are_the_trainers_own_affair(tmp_path, trainers):
    run = trainers.trained(
        tmp_path, Rows("0"), eval_dataset=Rows("5"), max_steps=2, eval_strategy="steps", eval_steps=1
    )
    shutil.rmtree(tmp_path / "checkpoint-2")
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 2
    assert not list(tmp_path.rglob("fkat_data_loaders.pt"))
