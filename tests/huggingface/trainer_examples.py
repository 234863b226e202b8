"""Trainers of transformers, and runs of them: a module of their own, as transformers takes seconds to import."""

import torch
import transformers
from huggingface_examples import NUM_TOKENS, data_loader, numbers, sharded

from fkat_data.huggingface import ExactResumeMixin


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


class StopBetween(transformers.TrainerCallback):
    """Stops after two of the three microbatches of an update."""

    def on_substep_end(self, args, state, control, **given):
        control.should_save = control.should_training_stop = state.global_step == 1


class WithMethod:
    """Gives any Trainer a loader, and is named before the mixin."""

    def get_train_dataloader(self):
        return sharded()


class Before(WithMethod, RecordingTrainer):
    pass


def define_behind():
    class Behind(transformers.Trainer, ExactResumeMixin):
        pass

    return Behind
