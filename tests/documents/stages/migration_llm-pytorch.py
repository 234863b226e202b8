# in process
from pathlib import Path

from fkat_data.datasets import JsonDataset as Lines

for name in "ab":
    Path(f"{name}.jsonl").write_text('{"number": 1}\n' * 40)
# after
assert len(list(loader)) == 6
