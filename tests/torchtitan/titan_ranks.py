"""A script of some ranks: torchtitan's trainer reads text and conversations, from the checkpoint of others."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint

from fkat_data.torchtitan import EncodeChat, EncodeText, TitanTextLoader

NUM_TEXTS = 300


class Tokenizer:
    """A token is a character."""

    bos_id, eos_id = 1, 2

    def encode(self, text, add_bos=False, add_eos=False):
        return [self.bos_id] * add_bos + [ord(char) for char in text] + [self.eos_id] * add_eos

    def apply_chat_template(self, messages, add_generation_prompt=False):
        text = "".join(f"[{message['role']}]{message['content']}\n" for message in messages)
        return text + "[assistant]" * add_generation_prompt


TEXTS = [{"text": f"<{number}>{'x' * (number % 23)}"} for number in range(NUM_TEXTS)]
CHATS = [
    {"messages": [{"role": "user", "content": f"what is {number}?"}, {"role": "assistant", "content": str(number)}]}
    for number in range(50)
]


def make(kind, rank=0, num_ranks=1, *, repeat=True, **options):
    sources = {"text": (TEXTS, EncodeText(Tokenizer()))}
    if kind == "mixed":
        sources["chat"] = (CHATS, EncodeChat(Tokenizer()))
        options["weights"] = {"text": 0.75, "chat": 0.25}
    options = {"row_length": 64, "window_size": 8, "num_workers": 0, **options}
    return TitanTextLoader(sources, dp_world_size=num_ranks, dp_rank=rank, repeat=repeat, **options)


def main(folder, kind, num_steps, before):
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    loader = make(kind, rank, num_ranks, repeat=num_steps > 0)
    if before != "none":
        checkpoint.load({"loader": loader}, checkpoint_id=folder / before)
    rows = []
    for inputs, labels in loader:
        rows.append([inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist()])
        if len(rows) == num_steps:
            break
    checkpoint.save({"loader": loader}, checkpoint_id=folder / f"{kind}-{num_ranks}")
    (folder / f"{kind}-{num_ranks}-{rank}.json").write_text(json.dumps(rows))
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
