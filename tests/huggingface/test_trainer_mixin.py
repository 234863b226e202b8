"""The ``Trainer`` of transformers: a checkpoint at each step, and each resumes to the same data and weights."""

import shutil

import pytest
import torch
import transformers
from huggingface_examples import (
    NUM_TOKENS,
    EndlessLookingRows,
    Rows,
    data_loader,
    numbers,
    rows,
    sharded,
    streaming,
    write_streams,
)

from fkat_data import ConfigurationError, StateMismatchError
from fkat_data.huggingface import ExactResumeMixin, last_checkpoint


class RecordingTrainer(ExactResumeMixin, transformers.Trainer):
    """Keeps what it trained on."""

    def __init__(self, *args, **kwargs):
        self.records = []
        self.evaluated = []
        super().__init__(*args, **kwargs)

    def training_step(self, model, inputs, *args, **kwargs):
        self.records.append((self.state.global_step, numbers(inputs)))
        return super().training_step(model, inputs, *args, **kwargs)

    def prediction_step(self, model, inputs, *args, **kwargs):
        self.evaluated.append((self.state.global_step, numbers(inputs)))
        return super().prediction_step(model, inputs, *args, **kwargs)


def trainer(folder, loader, trainer_class=RecordingTrainer, eval_dataset=None, **settings):
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        **{
            "gradient_accumulation_steps": 3,
            "learning_rate": 0.1,
            "logging_strategy": "no",
            "num_train_epochs": 2,
            "report_to": "none",
            "save_steps": 1,
            "save_strategy": "steps",
            "seed": 5,
            "use_cpu": True,
            "disable_tqdm": True,
        }
        | settings,
    )
    config = transformers.GPT2Config(
        vocab_size=NUM_TOKENS, n_positions=4, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    return trainer_class(model=model, args=args, train_dataset=loader, eval_dataset=eval_dataset)


def trained(*arguments, resume_from_checkpoint=None, **settings):
    """Return a Trainer after its training."""
    run = trainer(*arguments, **settings)
    run.train(resume_from_checkpoint=resume_from_checkpoint)
    return run


def check_resumed(run, checkpoint, step, folder, loader, **settings):
    """Resume from a checkpoint, and compare with the run from a step on."""
    resumed = trained(folder, loader, save_strategy="no", resume_from_checkpoint=checkpoint, **settings)
    assert resumed.records == [record for record in run.records if record[0] >= step]
    return resumed


class WithLoaders(RecordingTrainer):
    """Returns loaders of its own, as many do."""

    def get_train_dataloader(self):
        return self.accelerator.prepare(data_loader(seed=None))

    def get_eval_dataloader(self, eval_dataset=None):
        return data_loader()


class WithoutMixin(transformers.Trainer):
    """The same without the mixin; the seed decides on what it returns."""

    def get_train_dataloader(self):
        return data_loader(seed=self.args.data_seed)


def weights(trained):
    return torch.nn.utils.parameters_to_vector(trained.model.parameters()).tolist()


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
        {"max_steps": 7, "trainer_class": WithLoaders, "eval_strategy": "epoch", "eval_dataset": [0]},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_checkpoint_resumes_to_the_same_data_and_weights(kind, tmp_path, some):
    write_streams(tmp_path / "streams")
    make, settings = KINDS[kind]
    run = trained(tmp_path / "run", make(tmp_path / "streams"), **settings)
    num_steps = run.state.global_step
    delivered = [number for _, tokens in run.records for number in tokens[::3]]
    counts = [delivered.count(number) for number in range(NUM_TOKENS)]
    assert max(counts) - min(counts) <= 1
    if "max_steps" not in settings:
        assert set(counts) == {2}
    for step in some(range(1, num_steps), 2):
        Rows.loaded = 0
        checkpoint = tmp_path / "run" / f"checkpoint-{step}"
        resumed = check_resumed(run, checkpoint, step, tmp_path / "resumed", make(tmp_path / "streams"), **settings)
        assert weights(resumed) == weights(run)
        assert resumed.state.global_step == num_steps
        if kind == "sharded":
            assert Rows.loaded == sum(len(tokens) // 3 for _, tokens in resumed.records)


def test_loaders_of_evaluations_go_on_with_their_epochs(tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 3}
    run = trained(tmp_path / "run", sharded(), eval_dataset={"a": sharded(), "b": sharded()}, **settings)
    drawn = [[record for record in run.evaluated if record[0] == step] for step in (1, 2, 3)]
    assert [len(records) for records in drawn] == [2 * 12] * 3
    assert [tokens for _, tokens in drawn[0][:12]] == [tokens for _, tokens in drawn[0][12:]]  # a, then b
    assert [tokens for _, tokens in drawn[0]] != [tokens for _, tokens in drawn[1]]
    resumed = trainer(tmp_path / "other", sharded(), eval_dataset={"a": sharded(), "b": sharded()}, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert resumed.evaluated == drawn[1] + drawn[2]
    assert len(resumed.predict(sharded()).predictions) == NUM_TOKENS


def test_a_torn_checkpoint_is_passed_over_and_a_foreign_one_refused(tmp_path):
    run = trained(tmp_path, sharded(), max_steps=4)
    assert last_checkpoint(tmp_path / "none") is None
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4, "ep')
    (tmp_path / "checkpoint-3" / "rng_state.pth").write_bytes(b"PK")
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    check_resumed(run, True, 2, tmp_path, sharded(), max_steps=4)
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}" / "fkat_data_loaders.pt").unlink()
    with pytest.raises(ConfigurationError, match="does not say where the loader goes on"):
        trainer(tmp_path, sharded(), max_steps=4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    with pytest.raises(ConfigurationError, match="a whole checkpoint in"):
        trainer(tmp_path, sharded(), max_steps=4).train(resume_from_checkpoint=True)


class StopBetween(transformers.TrainerCallback):
    """Stops after two of the three microbatches of an update."""

    def on_substep_end(self, args, state, control, **given):
        control.should_save = control.should_training_stop = state.global_step == 1


@pytest.mark.parametrize("dataset", [Rows, EndlessLookingRows])
def test_a_checkpoint_between_two_updates_has_the_place_before_the_incomplete_one(dataset, tmp_path):
    stopped = trainer(tmp_path, sharded(dataset), max_steps=6, save_strategy="no")
    stopped.add_callback(StopBetween())
    stopped.train()
    assert len(stopped.records) == 3 + 1
    full = trained(tmp_path / "other", sharded(dataset), max_steps=6, save_strategy="no")
    check_resumed(full, tmp_path / "checkpoint-1", 1, tmp_path / "other", sharded(dataset), max_steps=6)


def test_microbatches_that_no_update_has_at_an_epochs_end_come_again(tmp_path):
    """Of an epoch without a length, the Trainer keeps the last gradients for the next one; a checkpoint does not."""
    settings = {"max_steps": 6, "gradient_accumulation_steps": 5}
    run = trained(tmp_path, sharded(EndlessLookingRows), save_strategy="epoch", **settings)
    check_resumed(run, tmp_path / "checkpoint-2", 2, tmp_path / "other", sharded(EndlessLookingRows), **settings)


class WithMethod:
    """Gives any Trainer a loader, and is named before the mixin."""

    def get_train_dataloader(self):
        return sharded()


def test_a_loader_that_passes_by_the_mixin_is_refused(tmp_path):
    hidden = trainer(tmp_path, rows(), max_steps=2)
    hidden.get_train_dataloader = sharded
    with pytest.raises(ConfigurationError, match=r"get_train_dataloader.*a method of the Trainer's class"):
        hidden.train()
    with pytest.raises(TypeError, match=r"class Behind\(ExactResumeMixin, Trainer\)"):

        class Behind(transformers.Trainer, ExactResumeMixin):
            pass

    class Before(WithMethod, RecordingTrainer):
        pass

    settings = {"trainer_class": Before, "max_steps": 4}
    run = trained(tmp_path, rows(), **settings)
    check_resumed(run, tmp_path / "checkpoint-2", 2, tmp_path / "other", rows(), **settings)


def test_a_checkpoint_of_other_loaders_alone_is_refused(tmp_path):
    settings = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 5, "max_steps": 1}
    trained(tmp_path, Rows("0"), eval_dataset=sharded(), eval_strategy="steps", eval_steps=1, **settings)
    with pytest.raises(ConfigurationError, match="the train loader's place"):
        trainer(tmp_path, sharded(), max_steps=2).train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-1" / "fkat_data_loaders.pt").unlink()
    with pytest.raises(ConfigurationError, match="the train loader's place"):
        trainer(tmp_path, rows(), trainer_class=WithLoaders, max_steps=2).train(resume_from_checkpoint=True)


def test_arguments_without_effect_are_named(tmp_path, caplog):
    trained(tmp_path, sharded(), max_steps=1)
    assert not caplog.messages
    trainer(tmp_path, data_loader(), max_steps=1, dataloader_num_workers=2, data_seed=4).train()
    first, second = caplog.messages
    assert "dataloader_num_workers=2" in first
    assert "data_seed=4" in first
    assert "per_device_train_batch_size=2" in second


def test_what_would_lose_data_is_refused(tmp_path):
    run = trained(tmp_path, sharded(), max_steps=2)
    with pytest.raises(StateMismatchError, match="gradient_accumulation_steps of the run that saved"):
        trainer(tmp_path, sharded(), max_steps=4, gradient_accumulation_steps=2).train(resume_from_checkpoint=True)
    with pytest.raises(ConfigurationError, match="ignore_data_skip"):
        trainer(tmp_path, sharded(), max_steps=4, ignore_data_skip=True).train(resume_from_checkpoint=True)
    failed = trainer(tmp_path / "again", sharded(), max_steps=2, ignore_data_skip=True)
    with pytest.raises(ConfigurationError, match="ignore_data_skip"):
        failed.train(resume_from_checkpoint=tmp_path / "checkpoint-1")
    failed.train()
    assert failed.records == run.records
    with pytest.raises(ConfigurationError, match="auto_find_batch_size"):
        trainer(tmp_path, sharded(), max_steps=4, auto_find_batch_size=True).train()
    write_streams(tmp_path / "streams")
    with pytest.raises(ConfigurationError, match=r"StreamingDataLoader\(dataset"):
        trainer(tmp_path, streaming(tmp_path / "streams").dataset, max_steps=4).train()


def test_the_trainer_alone_refuses_what_it_would_do_wrong(tmp_path):
    """It goes on at an epoch's start where the seed says the order, and nowhere else."""
    for seed in (None, 3):
        settings = {"trainer_class": WithoutMixin, "data_seed": seed, "max_steps": 5}
        run = trained(tmp_path, rows(), **settings)
        with pytest.raises(ConfigurationError, match=r"skip_first_batches.*ExactResumeMixin"):
            trainer(tmp_path, rows(), **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        resumed = trainer(tmp_path, rows(), **settings)
        if seed is None:
            with pytest.raises(ConfigurationError, match="needs the seed of"):
                resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        else:
            resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
            assert weights(resumed) == weights(run)


def test_other_datasets_are_the_trainers_own_affair(tmp_path):
    run = trained(tmp_path, Rows("0"), eval_dataset=Rows("5"), max_steps=2, eval_strategy="steps", eval_steps=1)
    shutil.rmtree(tmp_path / "checkpoint-2")
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 2
    assert not list(tmp_path.rglob("fkat_data_loaders.pt"))
