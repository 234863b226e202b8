"""Sends a loader's flat numbers through TensorBoard, W&B (offline) and MLflow (files), and reads back what arrived.

    pip install tensorboard wandb mlflow-skinny
    scripts/try_loggers.py

A logger that is not installed is left out. These packages are too large for the tests.
"""

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TypeAlias

import torch

from fkat_data import ShardedDataLoader

STEPS = 3
Numbers: TypeAlias = dict[str, float]


def through_tensorboard(folder: Path, steps: list[Numbers]) -> Numbers:
    """Return the numbers of the last step, as TensorBoard reads them."""
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
    for step, numbers in enumerate(steps):
        for name, value in numbers.items():
            writer.add_scalar(f"loader/{name}", value, step)
    writer.close()
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {tag.removeprefix("loader/"): found.Scalars(tag)[-1].value for tag in found.Tags()["scalars"]}


def through_wandb(folder: Path, steps: list[Numbers]) -> Numbers:
    """Return the numbers of the last step from W&B's summary."""
    wandb = importlib.import_module("wandb")
    run = wandb.init(mode="offline", project="fkat_data", dir=str(folder), settings=wandb.Settings(silent=True))
    for numbers in steps:
        run.log({f"loader/{name}": value for name, value in numbers.items()})
    found = {name.removeprefix("loader/"): value for name, value in dict(run.summary).items() if "loader/" in name}
    run.finish()
    if not list(folder.rglob("*.wandb")):
        raise RuntimeError("W&B has written no file")
    return found


def through_mlflow(folder: Path, steps: list[Numbers]) -> Numbers:
    """Return the numbers of the last step from MLflow's files."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    mlflow = importlib.import_module("mlflow")
    mlflow.set_tracking_uri((folder / "runs").as_uri())
    mlflow.set_experiment("fkat_data")
    with mlflow.start_run() as run:
        for step, numbers in enumerate(steps):
            mlflow.log_metrics({f"loader/{name}": value for name, value in numbers.items()}, step=step)
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    return {name.removeprefix("loader/"): value for name, value in metrics.items()}


def numbers_of_some_steps() -> list[Numbers]:
    loader = ShardedDataLoader(0, ["a"], lambda _: [torch.zeros(4)] * 10, multiprocessing=False)
    return [loader.statistics().as_dict() for _ in zip(range(STEPS), loader, strict=False)]


def main() -> None:
    steps, failed = numbers_of_some_steps(), False
    for send in (through_tensorboard, through_wandb, through_mlflow):
        name = send.__name__.removeprefix("through_")
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = send(Path(folder), steps)
            except ModuleNotFoundError as error:
                print(f"{name}: left out ({error})")
                continue
        wrong = {key for key, value in steps[-1].items() if abs(found.get(key, 1e300) - value) > 1e-6 * abs(value)}
        failed |= bool(wrong)
        print(f"{name}: {len(found)} numbers" + (f"; wrong: {sorted(wrong)}" if wrong else ", all as they were sent"))
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
