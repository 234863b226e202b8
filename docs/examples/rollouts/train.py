"""Send prompts to a pool that answers in random order, and use the answer to each prompt exactly once.

::

    python train.py    # kill it at any moment, run it again, until it says that it is done: no prompt is lost or used twice

The "policy" is a table of scores, and a rollout takes a random time. A prompt is committed in the step that uses its
answer, and one whose rollout failed is released. A checkpoint has the table and the loader's state: what was sent off and
not used comes again. A log of each step's prompts is cut off where the checkpoint was taken, as its weights are.
"""

import os
import random
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from fkat_data import DataLoader

NUM_PROMPTS, NUM_EPOCHS, CHECKPOINT_EVERY = 400, 2, 5


class Prompts(torch.utils.data.Dataset):
    def __len__(self):
        return NUM_PROMPTS

    def __getitem__(self, index):
        return {"prompt": index, "temperature": torch.rand(())}  # the same when it comes again


def rollout(prompts):
    time.sleep(random.random() * random.choice([0.002, 0.002, 0.02]))  # some take ten times as long
    return None if random.random() < 0.02 else prompts["temperature"] > 0.5  # a failure, or rewards


loader = DataLoader(Prompts(), 4, shuffle=True, seed=1, num_workers=1, commit="manual", max_outstanding=32)
policy, used = torch.zeros(NUM_PROMPTS), []
if Path("checkpoint.pt").exists():
    saved = torch.load("checkpoint.pt")
    policy, used = saved["policy"], saved["used"]
    loader.load_state_dict(saved["loader"])

with ThreadPoolExecutor(8) as pool:
    pending = {}  # each rollout's ticket and prompts, as in its future

    def update_from_those_done():
        for done in wait(pending, return_when=FIRST_COMPLETED).done:
            ticket, prompts = pending.pop(done)
            if (rewards := done.result()) is None:
                loader.release(ticket)
                continue
            policy[prompts["prompt"]] += rewards
            used.append([ticket.epoch, *prompts["prompt"].tolist()])
            loader.commit(ticket)
            if len(used) % CHECKPOINT_EVERY == 0:
                state = {"policy": policy, "used": used, "loader": loader.state_dict()}
                torch.save(state, "checkpoint.new")
                os.replace("checkpoint.new", "checkpoint.pt")  # at once: a kill leaves the old one or the new one
                print(f"step {len(used)}, {loader.num_outstanding} outstanding", flush=True)

    while loader.epoch < NUM_EPOCHS:
        for prompts in loader:
            pending[pool.submit(rollout, prompts)] = loader.ticket, prompts
            while loader.num_outstanding >= 32:
                update_from_those_done()
        while pending:  # an epoch ends when all of it is used; what was released comes with the next loop
            update_from_those_done()
loader.close()

numbers = sorted((epoch, prompt) for epoch, *prompts in used for prompt in prompts)
is_exact = numbers == [(epoch, prompt) for epoch in range(NUM_EPOCHS) for prompt in range(NUM_PROMPTS)]
print(f"done: each of {NUM_PROMPTS} prompts was used once in each of {NUM_EPOCHS} epochs: {is_exact}")
