# in process
from pathlib import Path

from torch.utils.data import BatchSampler, SequentialSampler

Path("data").mkdir()
for name in "ab":
    Path(f"data/{name}.jsonl").write_text('{"number": 1}\n' * 20)


def batches_of(dataset):
    return BatchSampler(SequentialSampler(dataset), 10, drop_last=False)


# after
assert len(list(loader)) == 4
assert len(list(loader_without_shards)) == 2
