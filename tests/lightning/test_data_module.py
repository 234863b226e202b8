"""Loaders of a configuration or a function: made once, when the ranks are known, and closed in the end."""

import pickle
import sys

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder
from lightning_examples import KNOWN, Model, Saver, known, plain, trainer_of, unknown
from loader_examples import make
from omegaconf import OmegaConf

from fkat_data import DataLoader
from fkat_data.configuration import instantiate
from fkat_data.errors import ConfigurationError
from fkat_data.lightning import DataModule, ExactResume
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:::pytorch_lightning", "ignore:::torch")
NODE = {
    "_target_": "fkat_data.ShardedDataLoader",
    "seed": 7,
    "shard_sampler": KNOWN,
    "dataloader_factory": {"_target_": "loader_examples.mixed", "_partial_": True},
    "multiprocessing": False,
}


class Both(Model):
    """A model that is validated, tested and asked for predictions."""

    def test_step(self, microbatch, index):
        self.evaluated.append(plain(microbatch))

    def predict_step(self, microbatch, index, dataloader_idx=0):
        return plain(microbatch)


@pytest.mark.parametrize(
    "node", [NODE, OmegaConf.create(NODE), lambda: make(KNOWN)], ids=["plain", "omegaconf", "function"]
)
def test_stages_come_from_configurations_and_functions(node):
    data, model, alone = DataModule(train=node, test=node, predict=[node, node]), Both(), make(KNOWN)
    trainer = trainer_of(max_epochs=1)
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data, verbose=False)
    epoch = [plain(one) for one in alone]
    assert model.seen == model.evaluated == epoch
    assert trainer.predict(model, datamodule=data) == [epoch, epoch]
    assert len(trainer.predict_dataloaders) == 2


def test_a_configuration_of_the_module_leaves_its_stages_to_it():
    config = {
        "_target_": "fkat_data.lightning.DataModule",
        "_recursive_": False,
        "train": {"a": NODE, "b": NODE},
        "val": NODE,
    }
    data, model = instantiate(OmegaConf.create(config)), Both()
    assert isinstance(data, DataModule)
    assert isinstance(data, pl.LightningDataModule)
    trainer_of(max_epochs=1).fit(model, datamodule=data)
    assert set(model.seen[0]) == {"a", "b"}
    assert len(model.evaluated) == 5


def test_loaders_are_made_once_and_closed_in_the_end():
    made, closed = [], []

    class Closing:
        def __iter__(self):
            return iter([torch.ones(2)] * 3)

        def close(self):
            closed.append(self)

    def maker():
        made.append(Closing())
        return {"a": made[-1]} if len(made) == 1 else made[-1]

    data = DataModule(train=maker, val=maker)
    trainer = trainer_of(exact=False, reload_dataloaders_every_n_epochs=1)
    trainer.fit(Both(), datamodule=data)
    trainer.validate(Both(), datamodule=data, verbose=False)
    assert len(made) == 2
    assert closed == made + made


def test_a_batch_size_that_is_tried_makes_the_loader_again(tmp_path):
    class Sized(Both):
        batch_size = 1

    def sized():
        return DataLoader(list(torch.zeros(40, 2)), model.batch_size)

    data, model = DataModule(train=sized, val=known), Sized()
    finder = BatchSizeFinder(max_trials=3, steps_per_trial=1, init_val=2)
    trainer_of(finder, max_epochs=1, default_root_dir=tmp_path).fit(model, datamodule=data)
    # Lightning has made the first loader before it sets the first size.
    assert [len(batch) for batch in model.seen] == [1, 4, 8, *[8] * 5]


def test_an_exception_closes_the_loaders(nothing_left_behind, processes):
    class Failing(Both):
        def training_step(self, microbatch, index):
            raise RuntimeError("failed")

    data = DataModule(train=lambda: make(KNOWN, multiprocessing=True))
    with pytest.raises(RuntimeError, match="failed"):
        trainer_of(max_epochs=1).fit(Failing(), datamodule=data)


def test_a_data_module_resumes_and_trains_again(tmp_path):
    """The loaders of the first call go on in the second one, where those of a resumed process do."""
    saver, first, second = Saver(tmp_path, ("on_train_batch_end", "on_train_epoch_end")), Both(), Both()
    data = DataModule(train=unknown, val=known)
    trainer_of(saver, reload_dataloaders_every_n_epochs=1).fit(first, datamodule=data)
    alone = unknown()
    assert first.seen == [plain(one) for _ in range(2) for one in alone]
    for num_seen, _, path in (saver.places[4], saver.places[6]):
        second = Both()
        data = DataModule(train=unknown, val=known)
        trainer_of(reload_dataloaders_every_n_epochs=1).fit(second, datamodule=data, ckpt_path=path)
        assert second.seen == first.seen[num_seen:]


def test_microbatches_arrive_on_the_trainers_device():
    class Watching:
        device = None

        def set_device(self, device):
            self.device = device

    loader = Watching()
    data = DataModule(train=lambda: loader)
    data.trainer = type("OnMeta", (), {"strategy": type("", (), {"root_device": torch.device("meta")})})
    assert data.train_dataloader() is loader
    assert loader.device == torch.device("meta")


def test_a_streaming_loader_predicts(tmp_path):
    """Lightning makes a DataLoader again for this, with the same arguments."""
    with MDSWriter(out=str(tmp_path), columns={"x": "int"}) as writer:
        for index in range(10):
            writer.write({"x": index})

    def streamed():
        return StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=4))

    found = trainer_of().predict(Both(), datamodule=DataModule(predict=streamed))
    assert [microbatch["x"] for microbatch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("given", [3, {"seed": 7}, [], {}, "a name"])
def test_what_makes_no_loader_is_refused(given):
    with pytest.raises(ConfigurationError, match="train = "):
        DataModule(train=given)


def test_a_loader_that_is_made_already_is_refused():
    with pytest.raises(ConfigurationError, match="before the ranks and the device are known"):
        DataModule(val=known())


def test_classes_have_the_bases_of_the_lightning_that_is_imported(monkeypatch):
    import pytorch_lightning

    both = DataModule(train=known)
    assert isinstance(both, pl.LightningDataModule)
    assert isinstance(both, pytorch_lightning.LightningDataModule)
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    assert not isinstance(ExactResume(), pl.Callback)
    assert isinstance(ExactResume(), pytorch_lightning.Callback)
    assert isinstance(ExactResume(), ExactResume)


def test_the_other_name_of_lightning_trains_and_resumes(tmp_path):
    import pytorch_lightning

    class Other(pytorch_lightning.LightningModule):
        training_step, validation_step = Model.training_step, Model.validation_step
        configure_optimizers, estimates = Model.configure_optimizers, False

        def __init__(self):
            super().__init__()
            self.layer, self.seen, self.evaluated = Model().layer, [], []

    class Saving(pytorch_lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

    def fit(*callbacks, ckpt_path=None):
        model, data = Other(), DataModule(train=unknown, val=known)
        trainer_of(*callbacks, package=pytorch_lightning).fit(model, datamodule=data, ckpt_path=ckpt_path)
        return model

    whole = fit(Saving())
    for step in (1, 4, 6):
        assert fit(ckpt_path=tmp_path / f"{step}.ckpt").seen == whole.seen[step:]


def test_objects_can_be_sent_to_another_process():
    data = pickle.loads(pickle.dumps(DataModule(train=known)))
    assert isinstance(data, pl.LightningDataModule)
    assert len(list(data.train_dataloader())) == 5
    assert isinstance(pickle.loads(pickle.dumps(ExactResume())), pl.Callback)


@pytest.mark.parametrize("imported", ["import fkat_data", "import fkat_data.lightning"])
def test_lightning_is_imported_when_an_object_is_made(run_script, imported):
    done = run_script(
        f"import sys\n{imported}\nprint([name for name in sys.modules if name.startswith(('lightning', 'pytorch_l'))])"
    )
    assert done.stdout == "[]\n"


def test_a_missing_lightning_is_one_line(run_script):
    text = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lightning", "pytorch_lightning"):
            raise ModuleNotFoundError(name)
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if "lightning" == name or "pytorch_lightning" == name else find_spec(name, *rest)
import fkat_data.lightning
"""
    done = run_script(text, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: fkat_data.lightning needs lightning or pytorch_lightning: pip install lightning"
    )
