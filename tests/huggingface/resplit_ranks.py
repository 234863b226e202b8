"""A rank under accelerate: loads the checkpoint of another number of ranks, delivers some microbatches, saves."""

import json
import os
import sys
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from huggingface_examples import numbers

from fkat_data import DataLoader
from fkat_data.huggingface import prepare
from fkat_data.runtime.distributed import gather

ROWS = [{"input_ids": torch.tensor([index])} for index in range(47)]


def of_ranks():
    state = PartialState()
    sampler = torch.utils.data.DistributedSampler(ROWS, state.num_processes, state.process_index, seed=3)
    return DataLoader(ROWS, 2, sampler=sampler, seed=3)


WAYS = {
    "accelerate": (lambda: DataLoader(ROWS, 2, shuffle=True), Accelerator.prepare),
    "prepare": (lambda: DataLoader(ROWS, 2, shuffle=True, seed=3), prepare),
    "a DistributedSampler": (of_ranks, Accelerator.prepare),
}


def main(folder, before, now, num_steps):
    torch.manual_seed(PartialState().process_index)
    for name, (make, prepared_by) in WAYS.items():
        accelerator = Accelerator(cpu=True)
        loader = prepared_by(accelerator, make())
        ledger = folder / f"{name}.json"
        if (folder / before / name).exists():
            accelerator.load_state(folder / before / name)
        received = [number for microbatch in islice(loader, num_steps) for number in numbers(microbatch)]
        accelerator.save_state(folder / now / name)
        all_received = [number for part in gather(received) for number in part]
        if accelerator.is_main_process:
            earlier = json.loads(ledger.read_text()) if ledger.exists() else []
            ledger.write_text(json.dumps(earlier + all_received))
        accelerator.wait_for_everyone()


if __name__ == "__main__":
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    torch.set_num_threads(1)
    PartialState(cpu=True)
    main(Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]) or None)
    PartialState().destroy_process_group()
