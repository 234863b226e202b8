# in process
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
for name in "ab":
    pq.write_table(pa.table({"text": ["text"] * 20, "label": range(20), "more": range(20)}), f"data/{name}.parquet")


def add_length(sample):
    return sample | {"length": len(sample["text"])}


# after
assert sorted(batch) == ["label", "length", "text"]
