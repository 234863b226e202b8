"""A tiny model, its Trainer, and the sweep that resumes from every checkpoint; scripts of ranks import this module too."""

import random
import warnings

import lightning.pytorch as pl
import torch
from loader_examples import make, mixed, plain

from fkat_data.lightning import ExactResume

#: What Lightning says to anybody who trains on a CPU for ten steps, without a logger.
warnings.filterwarnings("ignore", module="lightning|pytorch_lightning")


def numbers(microbatch):
    """The tensor of a microbatch, whatever it is nested in; None of a loader that has ended."""
    if isinstance(microbatch, torch.Tensor):
        return microbatch.reshape(-1)[:2].float()
    if isinstance(microbatch, dict):
        return sum(numbers(value) for value in microbatch.values() if not isinstance(value, str))
    if isinstance(microbatch, (list, tuple)):
        return sum(numbers(value) for value in microbatch)
    return torch.zeros(2)


class Model(pl.LightningModule):
    """Two weights, momentum, a scheduler, and a list of all that it was trained on and evaluated with."""

    def __init__(self, *, estimates=False, makers=None):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        with torch.no_grad():
            self.layer.weight.fill_(0.5)
            self.layer.bias.zero_()
        self.estimates = estimates
        self.makers = makers or {}
        self.seen = []
        self.evaluated = []

    def training_step(self, microbatch, index):
        self.seen.append(plain(microbatch))
        return torch.tanh(self.layer(numbers(microbatch) / 1e5)).square().mean()

    def validation_step(self, microbatch, index):
        if not self.trainer.sanity_checking:
            self.evaluated.append(plain(microbatch))
        self.log("val", self.layer(numbers(microbatch) / 1e5).mean(), batch_size=1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if self.estimates:
            assert self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Saver(pl.Callback):
    """Saves a checkpoint in every one of these hooks; the places are what was trained on before."""

    def __init__(self, folder, hooks):
        self.folder, self.places = folder, []
        for hook in hooks:
            setattr(self, hook, lambda trainer, module, *_, hook=hook: self.save(trainer, module, hook))

    def save(self, trainer, module, hook):
        if trainer.sanity_checking:
            return
        path = self.folder / f"{len(self.places)}-{hook}.ckpt"
        trainer.save_checkpoint(path)
        self.places.append((len(module.seen), len(module.evaluated), path))


def trainer_of(*callbacks, exact=True, package=pl, **options):
    saves = any(isinstance(callback, pl.callbacks.Checkpoint) for callback in callbacks)
    plain_options = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": saves}
    given = {"accelerator": "cpu", "logger": False, "max_epochs": 2, **plain_options, **options}
    return package.Trainer(callbacks=[*([ExactResume()] if exact else []), *callbacks], **given)


def weights(model):
    return [parameter.tolist() for parameter in model.parameters()]


def sweep(
    tmp_path,
    loaders,
    hooks=("on_train_batch_end",),
    *,
    exact=True,
    make_model=Model,
    more_callbacks=list,
    val=None,
    share=1.0,
    **options,
):
    """Train once, saving as `hooks` say; resume from a share of them; return the run, and what differs by checkpoint."""

    of_model = {"estimates": options.pop("estimates", False)}

    def fit(*callbacks, ckpt_path=None):
        model = make_model(**of_model)
        given = loaders()
        evaluated = None if val is None else val()
        trainer_of(*more_callbacks(), *callbacks, exact=exact, **options).fit(
            model, given, evaluated, ckpt_path=ckpt_path
        )
        return model

    saver = Saver(tmp_path, hooks)
    whole = fit(saver)
    differing = {}
    for num_seen, num_evaluated, path in chosen(saver.places, share):
        model = fit(ckpt_path=path)
        if model.seen != whole.seen[num_seen:]:
            differing[path.name] = [model.seen, whole.seen[num_seen:]]
        elif weights(model) != weights(whole):
            differing[path.name] = "weights"
        elif is_compared(path.name, num_seen, whole, options) and model.evaluated != whole.evaluated[num_evaluated:]:
            differing[path.name] = "evaluated"
    return whole, saver, differing


def chosen(places, share):
    """A share of the checkpoints, others in each run, and at least four."""
    return random.sample(places, max(min(4, len(places)), round(share * len(places))))


def is_compared(name, num_seen, whole, options):
    """Whether a resume validates as often as the run did; not one in a validation, nor one of a run that is done."""
    return "validation" not in name and not ("max_steps" in options and num_seen == len(whole.seen))


class Augmented(torch.utils.data.Dataset):
    """Samples, each with a random draw."""

    def __len__(self):
        return 13

    def __getitem__(self, index):
        return torch.tensor([index, float(torch.rand(()))])


KNOWN = ["map-a-5", "map-b-3"]  # 5 microbatches
UNKNOWN = ["stream-a-4", "skip-b-1", "generator-c-1"]  # 4 microbatches


def counted(shard):
    return mixed(shard)


counted.num_microbatches = lambda shard: -(-int(shard.rsplit("-", 1)[1]) // 2)


def known(seed=7, shards=KNOWN):
    return make(shards, counted, seed=seed)


def unknown(seed=7, shards=UNKNOWN):
    return make(shards, seed=seed)
