"""Two ranks that leave their loop at different steps, or one alone, and end at once with the iterator in their hands."""

import sys
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
    for _ in islice(microbatches, 2 if rank else int(sys.argv[1])):
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
