"""Our own formats keep the contract."""

import json
import tarfile
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from fkat_data.datasets import JsonDataset, ParquetDataset, TarDataset
from fkat_data.streaming import CSVWriter, JSONWriter, LocalDataset, MDSWriter, TSVWriter
from fkat_data.testing.contracts import FormatContract

COLUMNS = {"id": "int", "text": "str"}


class OfShards(FormatContract):
    writer = MDSWriter
    settings = {}  # noqa: RUF012 - of the writer

    def write(self, samples, folder):
        with self.writer(out=str(folder), columns=COLUMNS, size_limit=600, exist_ok=True, **self.settings) as writer:
            for sample in samples:
                writer.write(sample)

    def open(self, folder):
        return LocalDataset(folder)


class TestMDS(OfShards):
    pass


class TestCompressedMDS(OfShards):
    settings = {"compression": "zstd:3", "hashes": ["sha1"]}  # noqa: RUF012 - of the writer


class TestJSONShards(OfShards):
    writer = JSONWriter


class TestCSVShards(OfShards):
    writer = CSVWriter

    def samples(self):
        return [{"id": number, "text": f"Grüße {number}"} for number in range(40)]


class TestTSVShards(TestCSVShards):
    writer = TSVWriter


class TestParquet(FormatContract):
    def write(self, samples, folder):
        pq.write_table(pa.Table.from_pylist(samples), folder / "rows.parquet", row_group_size=7)

    def open(self, folder):
        return ParquetDataset(str(folder / "rows.parquet"))


class TestJsonLines(FormatContract):
    notices_cuts = False

    def write(self, samples, folder):
        (folder / "rows.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))

    def open(self, folder):
        return JsonDataset(str(folder / "rows.jsonl"))


class TestTar(FormatContract):
    def samples(self):
        return [{"__key__": f"{number:03}", "json": {"id": number}, "txt": f"Grüße {number}"} for number in range(20)]

    def write(self, samples, folder):
        with tarfile.open(folder / "rows.tar", "w") as archive:
            for sample in samples:
                for suffix, content in (("json", json.dumps(sample["json"])), ("txt", sample["txt"])):
                    member = tarfile.TarInfo(f"{sample['__key__']}.{suffix}")
                    member.size = len(content.encode())
                    archive.addfile(member, BytesIO(content.encode()))

    def open(self, folder):
        return TarDataset(str(folder / "rows.tar"))
