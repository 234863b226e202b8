# in process
from stage import SHARDS, factory

import fkat_data

code_loader = fkat_data.ShardedDataLoader(1, SHARDS, factory, multiprocessing=False)
text_loader = fkat_data.ShardedDataLoader(2, SHARDS, factory, multiprocessing=False)
# after
assert {microbatch["source"] for _, microbatch in zip(range(20), loader, strict=False)} == {"code", "text"}
