import dataclasses
import json
import re
import time
from html.parser import HTMLParser

import pytest
import torch
from loader_examples import epoch, make

from fkat_data.errors import ConfigurationError
from fkat_data.observe.durations import Durations, bucket_of
from fkat_data.tools.report.charts import clock
from fkat_data.tools.report.page import MEANINGS, page
from fkat_data.tools.report.traced_run import read_run


def factory(shard):
    for index in range(8):
        time.sleep(0.003)
        yield torch.full((1000,), index)


def traced(path, shards=("a", "b", "c"), multiprocessing=True, **options):
    with make(list(shards), factory, multiprocessing=multiprocessing, trace=path, **options) as loader:
        epoch(loader)
        epoch(loader)
        return loader.statistics()


PERFETTO = ("href", "https://ui.perfetto.dev")


class Checked(HTMLParser):
    """Every element is closed, and nothing is fetched from anywhere."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.seen = []
        self.words = []

    def handle_starttag(self, tag, attrs):
        assert not {"src", "href", "srcset"} & {name for name, _ in attrs} or attrs == [PERFETTO]
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def checked(text):
    parser = Checked()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"url\(|@import|<script", text)
    return parser


@pytest.mark.parametrize("multiprocessing", [False, True], ids=["in process", "worker process"])
def test_a_run_becomes_one_page_that_needs_nothing_else(multiprocessing, tmp_path):
    statistics = traced(
        tmp_path / "run.json", multiprocessing=multiprocessing, num_shard_prefetches=2 if multiprocessing else 0
    )
    run = read_run(tmp_path / "run.json")
    assert run.statistics.delivered == statistics.delivered == 48
    assert run.statistics.as_dict() == pytest.approx(statistics.as_dict(), rel=0.5, abs=10)
    assert run.statistics.making == statistics.making
    found = checked(page(run, "run.json"))
    text = "".join(found.words)
    assert "The trainer waited" in text
    assert ("worker 1" in text) == multiprocessing
    assert "epoch 1 ends" in text
    assert len([tag for tag, _ in found.seen if tag == "svg"]) == (8 if multiprocessing else 7)
    drawn = {attributes["class"] for tag, attributes in found.seen if tag == "rect"}
    assert {"step", "wait", "produce"} <= drawn <= set(MEANINGS)


def test_figures_have_their_unit_and_one_wording(tmp_path):
    traced(tmp_path / "run.json", multiprocessing=False)
    run = read_run(tmp_path / "run.json")
    statistics = run.statistics
    microsecond, second = {str(bucket_of(3e-5)): 99, str(bucket_of(2.0)): 1}, {"0 s": 99, str(bucket_of(2.0)): 1}
    statistics = dataclasses.replace(
        statistics, waiting=Durations.of(second), making=Durations.of(microsecond), waited_first_s=0.0004
    )
    last = run.marks[-1]._replace(statistics=statistics)
    run = dataclasses.replace(run, marks=[*run.marks[:-1], last])
    text = "".join(checked(page(run, "run.json")).words).replace("\N{NO-BREAK SPACE}", " ")
    assert "nonewaited for a microbatch, median; 95 % none, 99 % none, longest 2.04 s" in text
    assert "29.9 µsto make one, median; 95 % 29.9 µs, 99 % 29.9 µs, longest 2.04 s" in text
    assert "400 µswaited for the first microbatch" in text
    assert "making_p50_s29.9 µs" in text
    assert "0 s · " not in text
    assert "median; 90 %" not in text
    assert "median none, 95 % none, 99 % none, longest 2.04 s" in str(run.statistics).replace("\n", " ")


@pytest.mark.parametrize(
    ("at_s", "step_s", "end_s", "text"),
    [
        (0.5, 0.1, 2.0, "0.5 s"),
        (0.0302, 0.0001, 0.031, "30.2 ms"),
        (2e-6, 1e-6, 9e-6, "2 µs"),
        (100.0, 50.0, 900.0, "100 s"),
    ],
)
def test_an_axis_has_the_unit_of_its_end(at_s, step_s, end_s, text):
    assert clock(at_s, step_s, end_s) == text


@pytest.mark.usefixtures("processes")
def test_names_of_shards_cannot_break_the_page(tmp_path):
    traced(tmp_path / "run.json", ["<script>alert(1)</script>", '"&'])
    text = page(read_run(tmp_path / "run.json"), "<b>.json")
    checked(text)
    assert "alert(1)&lt;/script" in text
    assert "&lt;b&gt;.json" in text


@pytest.mark.long
def test_a_long_run_is_drawn_with_few_elements(tmp_path):
    events = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "trainer"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "training loop"}},
    ]
    for index in range(20_000):
        events.append({"name": "step", "ph": "X", "ts": index * 1000, "dur": 900, "pid": 1, "tid": 1})
        events.append({"name": "next", "ph": "X", "ts": index * 1000 + 900, "dur": 90, "pid": 1, "tid": 1})
        counter = {"name": "microbatches ready", "ph": "C", "ts": index * 1000, "pid": 1, "args": {"ready": index % 7}}
        events.append(counter)
    (tmp_path / "run.json").write_text(json.dumps(events))
    text = page(read_run(tmp_path / "run.json"), "run")
    checked(text)
    assert len(text) < 500_000


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.9999])
def test_what_is_left_of_a_file_that_was_cut_off_is_read(kept, tmp_path):
    traced(tmp_path / "run.json", multiprocessing=False)
    content = (tmp_path / "run.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(content[: int(kept * len(content))])
    run = read_run(tmp_path / "cut.json")
    assert run.tracks
    checked(page(run, "cut"))


#: Events of another program, as some profilers write them.
OTHERS = '[{"name": "process_name", "ph": "M", "pid": 1}, {"name": "step", "ph": "X", "ts": 1}]'


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "3", "text", '[{"name": 1}]', "[1, 2]", '[{"name": "a", "ts": 1}]', OTHERS]
)
def test_what_is_no_timeline_is_told(content, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigurationError, match="TIMELINE"):
        read_run(tmp_path / "run.json")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigurationError, match="missing"):
        read_run(tmp_path / "missing.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="binary"):
        read_run(tmp_path / "binary")


def test_a_run_that_has_not_delivered_anything_has_a_page(tmp_path):
    loader = make(["list-a-3"], trace=tmp_path / "run.json")
    loader.close()
    text = page(read_run(tmp_path / "run.json"), "run")
    checked(text)
    assert "No microbatch was delivered yet" in text
