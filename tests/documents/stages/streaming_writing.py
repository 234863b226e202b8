import gzip
import shutil
import tarfile
from pathlib import Path

from stage import write_numbers

for name in "ab":
    Path(f"{name}.txt").write_text("one\ntwo\n")
    write_numbers(f"data/{name}")
# after
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

shutil.rmtree("data")
Path("rows.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
for number in range(2):
    pq.write_table(pa.table({"a": [1, 2]}), f"part-{number}.parquet")
Path("shards").mkdir()
Path("0.cls").write_text("1")
with tarfile.open("shards/0.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
    archive.add("0.cls")
Path("photos").mkdir()
Image.new("RGB", (4, 4)).save("photos/a.jpg")
