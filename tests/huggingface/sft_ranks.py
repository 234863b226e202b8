"""Trains on conversations by the Trainer: encoded, masked and packed in a worker; says what each rank was given."""

import json
import os
import sys
from pathlib import Path

import torch
import transformers

from fkat_data import DataLoader
from fkat_data.datasets import JsonDataset, Pack, collate_packed
from fkat_data.huggingface import ExactResumeMixin, last_checkpoint


def encoded(chats):
    rows = []
    for chat in chats:
        parts = [(message["role"] == "assistant", list(message["content"].encode())) for message in chat["messages"]]
        tokens = [byte for _, content in parts for byte in content]
        labels = [byte if says else -100 for says, content in parts for byte in content]
        rows.append({"input_ids": torch.tensor(tokens), "labels": torch.tensor(labels)})
    return rows


class ExactTrainer(ExactResumeMixin, transformers.Trainer):
    pass


class Model(transformers.GPT2LMHeadModel):
    """Attends within a conversation, and notes what it is trained on."""

    def forward(self, input_ids=None, labels=None, position_ids=None, document_ids=None, **_):
        self.notes.append([bytes(row).decode() for row in input_ids.tolist()])
        is_same = (document_ids[:, None, :, None] == document_ids[:, None, None]).tril()
        mask = torch.zeros(is_same.shape).masked_fill(~is_same, torch.finfo(torch.float32).min)
        return super().forward(input_ids=input_ids, labels=labels, position_ids=position_ids, attention_mask=mask)


def main(folder, name, max_steps):
    packed = Pack(64, fields=("input_ids", "labels"), padding={"labels": -100})
    loader = DataLoader(
        JsonDataset(str(folder / "chats.jsonl")),
        2,
        shuffle=True,
        seed=1,
        num_workers=1,
        window_fn=[encoded, packed],
        window_size=8,
        collate_fn=collate_packed,
    )
    words = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no", "save_steps": max_steps}
    words |= {"lr_scheduler_type": "constant"}
    args = transformers.TrainingArguments(output_dir=str(folder / name), max_steps=max_steps, **words)
    transformers.set_seed(1)
    sizes = {"vocab_size": 128, "n_positions": 64, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = Model(transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model.notes = []
    ExactTrainer(model=model, args=args, train_dataset=loader).train(
        resume_from_checkpoint=last_checkpoint(folder / name)
    )
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).sum().item()
    found = {"rows": model.notes, "weights": weights}
    (folder / f"{name}-{max_steps}-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
    loader.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
