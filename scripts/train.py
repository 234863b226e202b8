"""Train a small GPT on bytes, from shards, resumable to the microbatch.

::

    python scripts/prepare_data.py
    python scripts/train.py                                    # configs/train.yaml lists the settings
    python scripts/train.py resume=true                        # continue after the latest checkpoint; else start over
    torchrun --nproc_per_node=2 scripts/train.py               # two ranks, each with its own shards

A resumed run has the same losses as an uninterrupted one, bit for bit. The loader resumes at the next microbatch, the
randomness of a step depends only on (seed, rank, step), and sums are always added in the same order, because the
number of threads is fixed and the algorithms are deterministic.
"""

import hashlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import hydra
import torch
import torch.distributed
from demo_gpt.checkpoints import Checkpoints
from demo_gpt.losses import LossLog
from demo_gpt.model import next_byte_loss
from demo_gpt.report import Report
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from tqdm import tqdm

from fkat_data import ConfigurationError, ShardedDataLoader, StateMismatchError
from fkat_data.configuration import instantiate, rank, register_resolvers, world_size

LOSSES = "losses.jsonl"

register_resolvers()


@hydra.main(version_base="1.3", config_path="../configs", config_name="train")
def main(config: DictConfig) -> None:
    try:
        for setting in ("steps", "accumulate", "threads", "warmup_steps", "checkpoint.every_steps", "checkpoint.keep"):
            value = OmegaConf.select(config, setting)
            if type(value) is not int or value < 1:
                raise ConfigurationError(setting, value, "an integer of at least 1")
        check_data(config.data)
        torch.set_num_threads(config.threads)
        torch.use_deterministic_algorithms(True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with process_group(), instantiate(config.loader) as loader:
            every_steps = config.checkpoint.every_steps
            say(f"a checkpoint every {every_steps} steps; after Ctrl-C or kill -9, go on: {resuming_command()}")
            say(train(config, loader))
    except (ConfigurationError, StateMismatchError) as error:
        raise SystemExit("\n".join([f"{error}", *getattr(error, "__notes__", [])])) from error
    except KeyboardInterrupt:
        raise SystemExit(f"stopped; go on after the latest checkpoint: {resuming_command()}" * (rank() == 0)) from None


def resuming_command() -> str:
    """Return the command that continues this run."""
    launcher = "python" if world_size() == 1 else f"torchrun --nproc_per_node={world_size()}"
    program = os.environ.get("DEMO_COMMAND", f"{launcher} {sys.argv[0]}")
    settings = [setting for setting in sys.argv[1:] if not setting.startswith("resume=")]
    return shlex.join([*program.split(), "resume=true", *settings])


def train(config: DictConfig, loader: ShardedDataLoader) -> str:
    """Train up to step ``config.steps``, and return a summary."""
    # The workers start while the model is built.
    torch.manual_seed(config.seed)
    model: nn.Module = instantiate(config.model)
    optimizer: Optimizer = instantiate(config.optimizer)(model.parameters())
    replica = in_step_with_other_ranks(model)

    output_dir = Path(config.output_dir)
    checkpoints = Checkpoints(output_dir / "checkpoints", config.checkpoint.keep)
    begun = begin(checkpoints, output_dir / LOSSES, resume=config.resume)
    step = 0
    if begun is not None:
        step = begun["step"]
        model.load_state_dict(begun["model"])
        optimizer.load_state_dict(begun["optimizer"])
        loader.load_state_dict(begun["loader"])

    losses = LossLog(output_dir / LOSSES, step) if rank() == 0 else None
    report = Report(loader, step, config.steps, is_shown=rank() == 0)
    microbatches = endless(loader)
    while step < config.steps:
        torch.manual_seed(step_seed(config.seed, step))
        for group in optimizer.param_groups:
            group["lr"] = optimizer.defaults["lr"] * min(1, (step + 1) / config.warmup_steps)
        tokens = [microbatch["tokens"] for microbatch in islice(microbatches, config.accumulate)]
        loss = take_step(replica, optimizer, tokens)
        step += 1
        report.after_step(loss, world_size() * sum(rows[:, 1:].numel() for rows in tokens))
        if losses is not None:
            losses.append(step, loss)
        if step % config.checkpoint.every_steps == 0 or step == config.steps:
            # A collective call: every rank takes part, but only one writes.
            loader_state = loader.state_dict()
            if losses is not None:
                losses.sync()
                checkpoints.save(
                    step,
                    {
                        "step": step,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader_state,
                    },
                )
    return report.summary(step, checkpoints.latest())


def take_step(model: nn.Module, optimizer: Optimizer, microbatches: Sequence[Tensor]) -> float:
    """Make one step on a list of microbatches, and return their mean loss over all ranks."""
    optimizer.zero_grad()
    total = torch.zeros(())
    for index, tokens in enumerate(microbatches):
        is_last = index == len(microbatches) - 1
        # The ranks add up their gradients once, with the last microbatch.
        alone = nullcontext() if is_last or not isinstance(model, DistributedDataParallel) else model.no_sync()
        with alone:
            loss = next_byte_loss(model, tokens) / len(microbatches)
            loss.backward()
        total += loss.detach()
    optimizer.step()
    if world_size() > 1:
        torch.distributed.all_reduce(total)
    return total.item() / world_size()


def in_step_with_other_ranks(model: nn.Module) -> nn.Module:
    """Return the model, wrapped if there are several ranks, so that they average their gradients."""
    if world_size() == 1:
        return model
    replica = DistributedDataParallel(model)
    # After its first backward pass, DDP changes the layout of the gradients, and on three or more ranks the order of a
    # sum depends on that layout. Do this pass before the run's first step, or a resumed run differs in the last bits.
    next_byte_loss(replica, torch.zeros(1, 2, dtype=torch.uint8)).backward()
    model.zero_grad()
    return replica


def begin(checkpoints: Checkpoints, losses: Path, *, resume: bool) -> dict[str, Any] | None:
    """Return the checkpoint to resume from, or None. Without ``resume``, an earlier run moves into a folder of its own."""
    latest = checkpoints.latest()
    if resume and latest is not None:
        say(f"resuming after {latest}")
        return checkpoints.load(latest)
    if resume:
        say(f"no checkpoint in {checkpoints.folder}: starting at the first step")
    if rank() == 0:
        # A later resume must not mistake an earlier run's checkpoint for this run's.
        earlier = checkpoints.set_aside(losses)
        if earlier is not None:
            say(f"starting over; the earlier run is kept: to go on with it, resume=true output_dir={earlier}")
    return None


def endless(loader: ShardedDataLoader) -> Iterator[Any]:
    """Yield the microbatches of one epoch after another."""
    while True:
        before = loader.statistics().delivered
        is_rest = loader.step > 0  # the rest of an epoch may be empty on this rank
        yield from loader
        if loader.statistics().delivered == before and not is_rest:
            raise SystemExit("an epoch has no microbatches: data.factory.batch_size exceeds the rows of a shard")


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a step, so that a resume does not need the state of a random generator."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{rank()}/{step}".encode(), digest_size=4).digest(), "big")


def check_data(data: DictConfig) -> None:
    """Exit with a hint if the data are missing or do not match the configuration."""
    if data.get("manifest") is None:
        return  # other kinds of data raise their own errors
    manifest = Path(data.manifest)
    if not manifest.is_file():
        raise SystemExit(f"no complete data in {data.uri}: run `python scripts/prepare_data.py` first")
    length = json.loads(manifest.read_text())["settings"]["sequence_length"]
    if length != data.sequence_length:
        raise SystemExit(
            f"the sequences in {data.uri} have {length} bytes: set data.sequence_length={length}, or run "
            f"`python scripts/prepare_data.py --sequence-length {data.sequence_length}`"
        )


@contextmanager
def process_group() -> Iterator[None]:
    """Join the other ranks, if torchrun started any."""
    if world_size() == 1:
        yield
        return
    torch.distributed.init_process_group("gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def say(text: str) -> None:
    """Print a line on one rank, above the progress bar."""
    if rank() == 0:
        tqdm.write(text)


if __name__ == "__main__":
    main()
