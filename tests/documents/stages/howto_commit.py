import random

import torch
from torch.utils.data import TensorDataset

from fkat_data import DataLoader, OutstandingError, Ticket

prompts, used = TensorDataset(torch.arange(20)), []


def start_rollout(batch):
    return batch[0].tolist()


def finished(pending):
    return random.sample([*pending], len(pending) // 2)


def train_on(rollout):
    used.extend(rollout)


def fails(rollout):
    return random.random() < 0.2 or used.extend(rollout)


# after
assert len(used) >= 20
assert loader.num_outstanding == 0
