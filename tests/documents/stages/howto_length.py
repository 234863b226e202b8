import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import RandomSampler

from fkat_data import DataLoaderFactory, ShardedDataLoader
from fkat_data.datasets import ParquetDataset

sampler = ["a.parquet", "b.parquet"]
for name in sampler:
    pq.write_table(pa.table({"a": range(100)}), name)
# after
assert len(loader) == 8
loader.close()
