# in process
import torch


class Lines(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.arange(1 + index % 7)

    def sort_key(self, index):
        return 1 + index % 7


lines = Lines()
# after
assert len(loader) == 4
