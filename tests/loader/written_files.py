"""Files of each format that hold twelve samples with a word, for tests that write them again."""

import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq

from fkat_data.datasets import JsonDataset, ParquetDataset, TarDataset

NUM_SAMPLES = 12


def write_lines(path, word):
    path.write_text("".join(json.dumps({"n": n, "word": word}) + "\n" for n in range(NUM_SAMPLES)), "utf-8")


def write_rows(path, word):
    pq.write_table(pa.table({"n": range(NUM_SAMPLES), "word": [word] * NUM_SAMPLES}), path, row_group_size=4)


def write_members(path, word):
    with tarfile.open(path, "w") as archive:
        for number in range(NUM_SAMPLES):
            member = path.parent / f"{number:02}.txt"
            member.write_text(word, "utf-8")
            archive.add(member, member.name)


FORMATS = [(JsonDataset, write_lines), (ParquetDataset, write_rows), (TarDataset, write_members)]
