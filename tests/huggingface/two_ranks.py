"""A rank of two: what accelerate and the Trainer deliver, and where each goes on."""

import logging
import os
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator, PartialState
from huggingface_examples import (
    NUM_TOKENS,
    data_loader,
    distributed,
    iterable,
    numbers,
    rows,
    sharded,
    streaming,
    write_streams,
)
from trainer_examples import check_resumed, trained, trainer, weights

from fkat_data import ConfigurationError, DataLoader, RankMismatchError
from fkat_data.huggingface import prepare
from fkat_data.runtime.distributed import gather


def deliver_each_once(folder):
    """Half of an epoch, a checkpoint, and the rest by another loader: for each loader, and each way to prepare it."""
    ways = {
        "sharded": (lambda: sharded(rank=rank, num_ranks=2), prepare),
        "DataLoader": (data_loader, prepare),
        "DataLoader by accelerate": (lambda: data_loader(seed=None), Accelerator.prepare),
        "sampler of ranks by accelerate": (lambda: distributed(rank, 2), Accelerator.prepare),
        "iterable by accelerate": (lambda: iterable(rank, 2), Accelerator.prepare),
        "streaming": (lambda: streaming(folder / "streams"), prepare),
        "streaming by accelerate": (lambda: streaming(folder / "streams"), Accelerator.prepare),
    }
    for name, (make, prepared_by) in ways.items():
        accelerator = Accelerator(cpu=True)
        loader = prepared_by(accelerator, make())
        received = []
        for microbatch in loader:
            received += numbers(microbatch)[::3]
            if len(received) >= NUM_TOKENS // 4:
                break
        accelerator.save_state(folder / name)
        accelerator.wait_for_everyone()
        accelerator = Accelerator(cpu=True)
        loader = prepared_by(accelerator, make())
        accelerator.load_state(folder / name)
        for microbatch in loader:
            received += numbers(microbatch)[::3]
        everything = sorted(number for part in gather(received) for number in part)
        assert everything == list(range(NUM_TOKENS)), (name, everything)


def resume_the_trainer(folder, make):
    settings = {"max_steps": 5, "gradient_accumulation_steps": 2}
    run = trained(folder / "run", make(), **settings)
    expected = gather(run.records)
    first_epoch = [number for records in expected for step, tokens in records if step < 3 for number in tokens[::3]]
    assert sorted(first_epoch) == list(range(NUM_TOKENS)), first_epoch
    for step in (1, 3, 4):
        checkpoint = str(folder / "run" / f"checkpoint-{step}")
        resumed = check_resumed(run, checkpoint, step, folder / "other", make(), **settings)
        assert weights(resumed) == weights(run)


def even_metrics():
    """Batches of three of twenty samples: the last ones are filled up, and metrics leave that out."""
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(rows(), 3, shuffle=True))
    gathered = [accelerator.gather_for_metrics(microbatch["input_ids"])[:, 0] for microbatch in loader]
    assert len(loader) == len(gathered) == 4
    assert sorted(torch.cat(gathered).tolist()) == list(range(NUM_TOKENS))
    with pytest.raises(ConfigurationError, match="the same on all ranks"):
        accelerator.prepare(data_loader(seed=rank))


def refuse_other_lengths(folder):
    uneven = sharded(rank=rank, num_ranks=2) if rank else sharded()
    with pytest.raises(RankMismatchError, match="12 on rank 0, 6 on rank 1"):
        trainer(folder / "uneven", uneven, max_steps=2).train()
    with pytest.raises(RankMismatchError, match="12 on rank 0, 6 on rank 1"):
        trainer(folder / "uneven", sharded(rank=rank, num_ranks=2), eval_dataset=uneven).evaluate()


def warn_of_equal_shards():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("fkat_data").addHandler(handler)
    prepare(Accelerator(cpu=True), sharded())
    assert any("each of the 2 ranks will deliver the same samples" in line for line in lines), lines


if __name__ == "__main__":
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    torch.set_num_threads(1)
    rank = PartialState(cpu=True).process_index
    target = Path(sys.argv[1])
    if rank == 0:
        write_streams(target / "streams")
    PartialState().wait_for_everyone()
    deliver_each_once(target)
    even_metrics()
    makers = {"DataLoader": data_loader, "streaming": lambda: streaming(target / "streams")}
    makers["sharded"] = lambda: sharded(rank=rank, num_ranks=2)
    for kind in sys.argv[2:]:
        resume_the_trainer(target / kind, makers[kind])
    refuse_other_lengths(target)
    warn_of_equal_shards()
    if rank == 0:
        print("all of it")
    PartialState().destroy_process_group()
