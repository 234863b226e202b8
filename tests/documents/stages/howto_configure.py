from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Path("data").mkdir()
pq.write_table(pa.table({"number": list(range(20))}), "data/part-0.parquet")
