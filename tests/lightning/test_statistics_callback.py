"""A Trainer's loggers learn what its loaders do."""

import logging
from types import SimpleNamespace

import pytest
from lightning.pytorch.loggers.logger import Logger
from lightning_examples import Model, known, trainer_of, unknown

from fkat_data.lightning import StatisticsCallback

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:::torch")


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
