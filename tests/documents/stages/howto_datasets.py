import numpy as np
import torch
from stage import Lines, ShardedDataLoader
from torch.utils.data import DataLoader

import fkat_data
from fkat_data.datasets import BufferSortedDataset, PaddingCollate


class Store:
    def get(self, name):
        return name


def decoded(content):
    return content


def augmented(image, angle):
    return (image, angle)


lines = documents = Lines()
np.arange(3 * 4096 + 1, dtype=np.uint16).tofile("train.bin")
# after
assert len(list(DataLoader(dataset, batch_size=32, collate_fn=PaddingCollate(0)))) == 2
images = Images()
images.store, images.names = Store(), ["a"]
assert -10 <= images[0][1] <= 10
assert torch.equal(inputs[:, 1:], labels[:, :-1])
assert labels.shape == (3, 4096)
