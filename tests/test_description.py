"""What objects say of themselves fits a line, keeps secrets, and never raises."""

import io
import json
import tarfile
from functools import partial
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from IPython.core.formatters import HTMLFormatter

import fkat_data
from fkat_data.datasets import (
    BufferSortedDataset,
    DictDataset,
    DistributedShardedDataset,
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    PackedDataset,
    PaddingCollate,
    ParquetDataset,
    ShardedDataset,
    TarDataset,
    TokenBudgetBatchSampler,
)
from fkat_data.errors.wording import LINE_CHARACTERS, Described, html_table, redacted_location
from fkat_data.mixing import DictDataLoader, Weighted
from fkat_data.observe import LoaderStatistics
from fkat_data.samplers import (
    DistributedDataParallelShardSampler,
    FsShardSampler,
    SequenceShardSampler,
    ShuffledShardSampler,
)
from fkat_data.streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset

SECRETS = ("hunter2", "signature")
OPTIONS = {"secret": "hunter2", "key": "signature"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with a name that fills a line, and files of every kind in it."""
    folder = tmp_path_factory.mktemp("data") / ("a-long-name-" * 12)
    folder.mkdir()
    pq.write_table(pa.table({"number": list(range(8))}), folder / "rows.parquet")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"number": number}) + "\n" for number in range(8)))
    with tarfile.open(folder / "rows.tar", "w") as tar:
        for number in range(8):
            member = tarfile.TarInfo(f"{number:03}.txt")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"a"))
    with MDSWriter(out=str(folder / "mds"), columns={"number": "int"}) as writer:
        for number in range(8):
            writer.write({"number": number})
    return folder


class Lines(torch.utils.data.Dataset):
    """Documents of one to three tokens."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.arange(1 + index % 3)

    def sort_key(self, index):
        return 1 + index % 3


def sharded(data):
    factory = fkat_data.DataLoaderFactory(partial(ParquetDataset, storage_options=OPTIONS), batch_size=2)
    shards = [str(data / "rows.parquet")]
    return fkat_data.ShardedDataLoader(3, shards, factory, multiprocessing=False)


def streaming(data):
    return StreamingDataset(local=str(data / "mds"), batch_size=2, shuffle=True, storage_options=OPTIONS)


def in_dictionary(data):
    names = {f"a source with a long name {number}": sharded(data) for number in range(4)}
    return DictDataLoader(names, Weighted(dict.fromkeys(names, 1.0)))


MAKERS = {
    "ShardedDataLoader": sharded,
    "StreamingDataLoader": lambda data: StreamingDataLoader(streaming(data)),
    "DataLoader": lambda data: fkat_data.DataLoader(list(range(8)), batch_size=2),
    "DataLoader of an iterable": lambda data: fkat_data.DataLoader(
        IterableJsonDataset(str(data / "rows.jsonl")), batch_size=2
    ),
    "DictDataLoader": in_dictionary,
    "StreamingDataset": streaming,
    "LocalDataset": lambda data: LocalDataset(data / "mds"),
    "Stream": lambda data: Stream(local=str(data / "mds"), proportion=2.5),
    "Stream of a store": lambda data: Stream(
        remote="https://user:hunter2@example.com/data/of/a/long/name/indeed?token=signature",
        local=str(data / "cache"),
        storage_options=OPTIONS,
    ),
    "ParquetDataset": lambda data: ParquetDataset(str(data / "rows.parquet"), storage_options=OPTIONS),
    "IterableParquetDataset": lambda data: IterableParquetDataset(
        ["https://user:hunter2@example.com/rows.parquet?token=signature", str(data / "rows.parquet")]
    ),
    "JsonDataset": lambda data: JsonDataset(str(data / "rows.jsonl"), storage_options=OPTIONS),
    "IterableJsonDataset": lambda data: IterableJsonDataset(str(data / "rows.jsonl"), storage_options=OPTIONS),
    "TarDataset": lambda data: TarDataset(str(data / "rows.tar"), storage_options=OPTIONS),
    "SequenceShardSampler": lambda data: SequenceShardSampler([["s3://user:hunter2@bucket/a", "b"], "c"]),
    "FsShardSampler": lambda data: FsShardSampler(data, storage_options=OPTIONS),
    "ShuffledShardSampler": lambda data: ShuffledShardSampler(FsShardSampler(data), seed=10**60),
    "DistributedDataParallelShardSampler": lambda data: DistributedDataParallelShardSampler(["a", "b"], 2, 1),
    "DataLoaderFactory": lambda data: fkat_data.DataLoaderFactory(
        partial(ParquetDataset, storage_options=OPTIONS), torch.utils.data.SequentialSampler, batch_size=2
    ),
    "DictDataset": lambda data: DictDataset({f"a source with a long name {number}": [1] for number in range(9)}),
    "DistributedShardedDataset": lambda data: DistributedShardedDataset(
        range, {"s3://user:hunter2@bucket/a": ((4,), {}), "b": ((4,), {})}, rank=0, world_size=2
    ),
    "ShardedDataset": lambda data: ShardedDataset([1, 2, 3], 2, 1, "chunked", True),
    "BufferSortedDataset": lambda data: BufferSortedDataset(Lines(), buffer_size=4, pack_size=2, init_seed=1),
    "PackedDataset": lambda data: PackedDataset(Lines(), sequence_length=4, seed=1),
    "TokenBudgetBatchSampler": lambda data: TokenBudgetBatchSampler([1, 2, 3], max_tokens=4, seed=1),
    "PaddingCollate": lambda data: PaddingCollate({"tokens": 0}, padding_side="left", lengths_name="lengths"),
    "MDSWriter": lambda data: MDSWriter(out=str(data / "written"), columns={"number": "int"}, exist_ok=True),
}


class _Balance(HTMLParser):
    """The tags that are open, and the texts."""

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def texts_of(html):
    parser = _Balance()
    parser.feed(html)
    assert not parser.open
    return parser.texts


def check(shown, name):
    line = repr(shown)
    assert line.startswith(f"{name}("), line
    assert len(line) <= LINE_CHARACTERS, line
    assert "\n" not in line
    html = HTMLFormatter()(shown)
    assert texts_of(html)[0] == name
    for secret in SECRETS:
        assert secret not in line + str(shown) + html
    return line


@pytest.mark.parametrize("name", MAKERS)
def test_an_object_shows_itself_on_a_line_before_during_and_after_an_epoch(name, data):
    shown = MAKERS[name](data)
    kind = name.split()[0]
    before = check(shown, kind)
    # Those that can be iterated here, without a network.
    if hasattr(shown, "__iter__") and "example.com" not in repr(getattr(shown, "paths", "")):
        iterator = iter(shown)
        next(iterator)
        during = check(shown, kind)
        if "step=0" in before or "yielded=0" in before:
            assert during != before
        if hasattr(shown, "statistics"):
            check(shown.statistics(), type(shown.statistics()).__name__)
    if hasattr(shown, "close"):
        shown.close()
        check(shown, kind)


def test_the_statistics_print_as_a_table_with_the_verdict():
    statistics = LoaderStatistics(
        delivered=1200, delivered_bytes=3 << 20, elapsed_s=8.2, waited_s=2.3, produced=1210, produce_s=7.6, idle_s=0.4,
        num_workers=1, num_cpus=2, num_segments=3, segment_bytes=4 << 20, held_bytes=1 << 20, skipped_shards=1,
    )  # fmt: skip
    lines = str(statistics).splitlines()
    assert [line.split("  ")[0] for line in lines if line[0] != " "] == [
        "delivered", "waited", "made", "workers", "time spent", "shared memory", "faults", "verdict",
    ]  # fmt: skip
    assert lines[0].endswith("1,200 microbatches, 3 MiB, 146.3 a second")
    assert max(map(len, lines)) <= LINE_CHARACTERS
    assert repr(statistics) == "LoaderStatistics(delivered=1200, elapsed=8.2 s, waited=28 %, num_workers=1)"


class HalfMade(Described):
    """Its constructor has not got far."""

    def _repr_facts(self):
        yield "first", 1
        yield "missing", self.missing


def test_a_half_made_object_shows_what_it_has():
    assert repr(HalfMade()) == "HalfMade(first=1)"
    assert repr(object.__new__(fkat_data.ShardedDataLoader)) == "ShardedDataLoader()"


def test_html_is_escaped():
    html = html_table("<b>", [("<script>", "a & b"), ("name", '"quoted"')])
    assert "<script>" not in html
    assert texts_of(html) == ["<b>", "<script>", "a & b", "name", '"quoted"']


@pytest.mark.parametrize(
    ("location", "redacted"),
    [
        (None, None),
        ("/data/rows.parquet", "/data/rows.parquet"),
        ("s3://key:pass/word@bucket/rows", "s3://bucket/rows"),
        ("https://host/a?token=1#part", "https://host/a"),
        ("simplecache::https://u:p@host/a?b=c", "simplecache::https://host/a"),
        ("/" + "a" * 80 + "/rows.parquet", "…" + "a" * 16 + "/rows.parquet"),
    ],
)
def test_a_location_is_short_and_has_no_secrets(location, redacted):
    assert redacted_location(location) == redacted
