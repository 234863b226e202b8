import sqlite3
from pathlib import Path

import numpy as np

from fkat_data.streaming import MDSWriter

with MDSWriter(out="written", columns={"text": "str"}) as writer:
    for number in range(10):
        writer.write({"text": f"text {number}"})
database = Path("data.db").resolve()
with sqlite3.connect(database) as connection:
    connection.execute("CREATE TABLE files(name TEXT PRIMARY KEY, content BLOB)")
    for path in Path("written").iterdir():
        connection.execute("INSERT INTO files VALUES (?, ?)", [path.name, path.read_bytes()])
connection.close()
# after
assert [sample["text"] for sample in StreamingDataset(remote=f"sqlite://{database}", batch_size=4)] == [
    f"text {number}" for number in range(10)
]
assert [sample["z"] for sample in dataset] == [complex(number, 1) for number in reversed(range(8))]
Path("contract").mkdir()
TestSqliteStore().test_any_range_arrives(Path("contract").resolve())
assert sum(name.startswith("test_") for name in dir(TestSqliteStore)) == 9
