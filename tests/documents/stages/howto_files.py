# in process
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from PIL import Image

pq.write_table(pa.table({"tokens": [[1, 2]], "label": [1], "text": ["a"]}), "part-0.parquet")
Path("a.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
Path("b.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "b"}\n'))
Path("0.cls").write_text("1")
Image.new("RGB", (4, 4)).save("0.jpg")
with tarfile.open("train-0000.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
    archive.add("0.cls")
    archive.add("0.jpg")
# after
assert rows[0]["label"] == 1
assert [line["text"] for line in lines] == ["a", "b"]
assert len(images) == 1
