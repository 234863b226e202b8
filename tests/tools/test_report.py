import json
import re
import time
from functools import partial
from html.parser import HTMLParser

import command_examples
import pytest
import torch
from loader_examples import epoch, make

from fkat_data.errors import ConfigurationError
from fkat_data.tools import page, read_run


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
    html = page(run, "run.json")
    found = checked(html)
    text = "".join(found.words)
    assert "The trainer waited" in text
    assert ("worker 1" in text) == multiprocessing
    assert "epoch 1 ends" in text
    assert len([tag for tag, _ in found.seen if tag == "svg"]) == (8 if multiprocessing else 7)
    drawn = {attributes["class"] for tag, attributes in found.seen if tag == "rect"}
    assert {"step", "wait", "produce"} <= drawn
    assert all(f"rect.{name}{{fill:" in html.partition("</style>")[0] for name in drawn)
    assert re.search(r"making_p50_s[\d.]+ ms", text)


def test_names_of_shards_cannot_break_the_page(processes, tmp_path):
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


#: Events of another program, as some profilers write them.
OTHERS = b'[{"name": "process_name", "ph": "M", "pid": 1}, {"name": "step", "ph": "X", "ts": 1}]'


@pytest.mark.parametrize(
    "content",
    [None, b"\xff\xfe\0", b"", b"[]", b"{}", b"3", b'[{"name": 1}]', b"[1, 2]", b'[{"name": "", "ts": 1}]', OTHERS],
)
def test_what_is_no_timeline_and_a_file_that_is_not_there_is_told(content, tmp_path):
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"TIMELINE = '.*run\.json"):
        read_run(tmp_path / "run.json")


def test_a_run_that_has_not_delivered_anything_has_a_page(tmp_path):
    make(["list-a-3"], trace=tmp_path / "run.json").close()
    text = page(read_run(tmp_path / "run.json"), "run")
    checked(text)
    assert "No microbatch was delivered yet" in text


said = partial(command_examples.said, "report")


def test_the_page_lies_beside_the_timeline_and_the_verdict_is_printed(tmp_path):
    epoch(make(["list-a-9"], trace=tmp_path / "run.json"))
    output = said(tmp_path / "run.json")
    assert "the trainer waited" in output
    assert "making one: median " in output
    assert str(tmp_path / "run.html") in output
    assert "<svg" in (tmp_path / "run.html").read_text()
    said(tmp_path / "run.json", "--output", tmp_path / "other.html")
    assert (tmp_path / "other.html").is_file()


def test_the_page_does_not_replace_the_timeline(tmp_path):
    path = tmp_path / "run.html"
    make(["list-a-3"], trace=path).close()
    content = path.read_bytes()
    assert "--output = " in said(path, code=2)
    assert path.read_bytes() == content


def test_without_a_timeline_there_is_no_report(tmp_path):
    output = said(tmp_path / "run.json", code=2)
    assert "cannot write the report" in output
    assert "run.json" in output
    assert list(tmp_path.iterdir()) == []
