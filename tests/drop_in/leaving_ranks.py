"""Two ranks that leave their loop at different steps, and end at once with the iterator in their hands."""

import time
from itertools import islice

import torch.distributed as dist

from fkat_data import DataLoader


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = DataLoader(range(4000), 4, window_fn=list, window_size=40, collate_fn=list, num_workers=1)
    loader.deal_out(2, rank)
    microbatches = iter(loader)
    for _ in islice(microbatches, 2 if rank else 6):
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
