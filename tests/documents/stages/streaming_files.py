# in process
import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Path("data/a").mkdir(parents=True)
tokens = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(40 * 1024, np.uint16)), 1024)
pq.write_table(pa.table({"tokens": tokens, "label": np.arange(40), "text": ["a"] * 40}), "data/a/0.parquet")
Path("shards").mkdir()
with tarfile.open("shards/0.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
    for number in range(40):
        for kind in ("jpg", "cls"):
            member = tarfile.TarInfo(f"{number:03}.{kind}")
            content = b"%d" % number
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
Path("corpus").mkdir()
np.save("corpus/0.npy", np.zeros(100_000, np.uint16))
# after
assert batch["tokens"].shape == (8, 4097)
