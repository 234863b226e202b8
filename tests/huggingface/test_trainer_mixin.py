"""The ``Trainer`` of transformers: a checkpoint at each step, and each resumes to the same data and weights."""

import json
from functools import partial

import pytest
import torch
import transformers
from huggingface_examples import NUM_TOKENS, EndlessLookingRows, Rows, numbers, sharded, streaming, write_streams

from fkat_data import ConfigurationError, StateMismatchError
from fkat_data.huggingface import ExactResumeMixin, last_checkpoint


class RecordingTrainer(ExactResumeMixin, transformers.Trainer):
    """Keeps what it trained on."""

    def __init__(self, *args, **kwargs):
        self.records = []
        super().__init__(*args, **kwargs)

    def training_step(self, model, inputs, *args, **kwargs):
        self.records.append((self.state.global_step, numbers(inputs)))
        return super().training_step(model, inputs, *args, **kwargs)


def trainer(folder, loader, trainer_class=RecordingTrainer, eval_loader=None, **settings):
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        **{
            "gradient_accumulation_steps": 3,
            "learning_rate": 0.1,
            "logging_strategy": "no",
            "num_train_epochs": 3,
            "report_to": "none",
            "save_steps": 1,
            "save_strategy": "steps",
            "seed": 5,
            "use_cpu": True,
            "disable_tqdm": True,
        }
        | settings,
    )
    config = transformers.GPT2Config(vocab_size=NUM_TOKENS, n_positions=4, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    return trainer_class(model=model, args=args, train_dataset=loader, eval_dataset=eval_loader)


def weights(trained):
    return torch.nn.utils.parameters_to_vector(trained.model.parameters()).tolist()


#: What makes the loader of a folder, and the Trainer's arguments.
KINDS = {
    "sharded": (lambda folder: sharded(), {}),
    "sharded, steps": (lambda folder: sharded(), {"max_steps": 9}),
    "sharded, no length": (lambda folder: sharded(EndlessLookingRows), {"max_steps": 9}),
    "sharded, one microbatch a step": (lambda folder: sharded(), {"gradient_accumulation_steps": 1, "max_steps": 25}),
    "streaming": (streaming, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_checkpoint_resumes_to_the_same_data_and_weights(kind, tmp_path):
    write_streams(tmp_path / "streams")
    make, settings = KINDS[kind]
    run = trainer(tmp_path / "run", make(tmp_path / "streams"), **settings)
    run.train()
    num_steps = run.state.global_step
    epochs = {}
    for number in (number for _, tokens in run.records for number in tokens[::3]):
        epochs[number] = epochs.get(number, 0) + 1
    assert set(epochs) == set(range(NUM_TOKENS))
    assert max(epochs.values()) - min(epochs.values()) <= 1
    if "max_steps" not in settings:
        assert set(epochs.values()) == {3}
    for step in range(1, num_steps):
        resumed = trainer(tmp_path / "resumed", make(tmp_path / "streams"), save_strategy="no", **settings)
        Rows.loaded = 0
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
        assert resumed.records == [record for record in run.records if record[0] >= step]
        assert weights(resumed) == weights(run)
        assert resumed.state.global_step == num_steps
