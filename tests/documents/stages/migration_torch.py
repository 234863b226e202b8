# in process
from pathlib import Path

for name in "ab":
    Path(f"{name}.jsonl").write_text('{"number": 1}\n' * 20)


def train(batch):
    assert len(batch) == 10


# after
assert len(list(loader)) == 4
