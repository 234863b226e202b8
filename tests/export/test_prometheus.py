import dataclasses
import gc
import json
import logging
import re
import threading
import time
from pathlib import Path

import pytest
from loader_examples import epoch, make

from fkat_data import LoaderStatistics
from fkat_data.errors import ConfigurationError
from fkat_data.export import METRICS, PrometheusFile, prometheus_text
from fkat_data.observe import Durations

DASHBOARD = Path(__file__).parents[2] / "docs" / "dashboards" / "fkat_data.json"
#: By bucket: seven of nothing, two of 50 ms, one of 200 ms.
SEEN = LoaderStatistics(delivered=10, waited_s=0.1 + 0.2, waiting=Durations.of({"0 s": 7, "250": 2, "282": 1}))
HISTOGRAMS = {"waiting", "making"}


class Source:
    def __init__(self, statistics=SEEN):
        self.known = statistics

    def statistics(self):
        if isinstance(self.known, Exception):
            raise self.known
        return self.known


def samples(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def exported():
    """The names that a Prometheus has, of series, without labels."""
    return {re.sub(r"\{.*", "", name) for name in samples(prometheus_text([({}, SEEN)]))}


def test_every_number_of_the_statistics_is_exported():
    fields = {field.name for field in dataclasses.fields(LoaderStatistics)}
    assert {metric.field for metric in METRICS} == fields - set(HISTOGRAMS) - {"made_on", "seen", "opened_alone"}
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(metric.name.endswith("_total") == metric.is_total for metric in METRICS)


def test_numbers_and_histograms_are_written_with_their_labels():
    found = samples(prometheus_text([({"loader": 'a "b"\n\\', "rank": "3"}, SEEN)]))
    labels = r'loader="a \"b\"\n\\",rank="3"'
    assert found[f"fkat_data_delivered_total{{{labels}}}"] == "10.0"
    assert float(found[f"fkat_data_waited_seconds_total{{{labels}}}"]) == 0.1 + 0.2
    buckets = [float(count) for name, count in found.items() if name.startswith("fkat_data_waiting_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-1]) == (7, 10)
    assert found[f'fkat_data_waiting_seconds_bucket{{le="0.0625",{labels}}}'] == "9.0"
    assert found[f"fkat_data_waiting_seconds_count{{{labels}}}"] == "10.0"
    assert float(found[f"fkat_data_waiting_seconds_sum{{{labels}}}"]) == pytest.approx(0.3, rel=0.03)


def test_the_reference_parser_reads_the_text():
    parser = pytest.importorskip("prometheus_client.parser")
    families = {
        family.name: family
        for family in parser.text_string_to_metric_families(
            prometheus_text([({"loader": "a", "rank": "0"}, SEEN), ({"loader": "b", "rank": "0"}, LoaderStatistics())])
        )
    }
    assert len(families) == len(METRICS) + len(HISTOGRAMS)
    assert families["fkat_data_waiting_seconds"].type == "histogram"
    assert families["fkat_data_delivered"].type == "counter"
    assert [sample.value for sample in families["fkat_data_delivered"].samples] == [10, 0]
    assert all(family.documentation for family in families.values())


def test_the_dashboard_asks_for_nothing_but_what_is_exported():
    asked = set(re.findall(r"fkat_data_\w+", DASHBOARD.read_text()))
    assert asked <= exported()
    assert len(asked) > 15
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")")
            # A wait that goes on counts before the iteration does: the share would be infinite.
            assert ("/" in target["expr"]) <= target["expr"].startswith("clamp_max(")
            assert set(re.findall(r"by \((.*?)\)", target["expr"])) <= {"le, loader", "loader"}


def test_the_file_follows_the_loader_and_stays(tmp_path):
    loader = make(["list-a-3"])
    with PrometheusFile(tmp_path / "run.prom", {"train": loader}, interval_s=0.01, labels={"run": "x"}) as file:
        delivered = 'fkat_data_delivered_total{loader="train",rank="0",run="x"}'
        assert samples(file.path.read_text())[delivered] == "0.0"
        epoch(loader)
        deadline_s = time.monotonic() + 10
        while samples(file.path.read_text())[delivered] != "3.0" and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert samples(file.path.read_text())[delivered] == "3.0"
        epoch(loader)
    file.close()
    assert samples(file.path.read_text())[delivered] == "6.0"
    assert [path.name for path in tmp_path.iterdir()] == ["run.prom"]
    assert "fkat_data export" not in {thread.name for thread in threading.enumerate()}


def test_no_loader_is_kept_alive(tmp_path):
    source = Source()
    with PrometheusFile(tmp_path / "run.prom", source, interval_s=60) as file:
        assert 'loader="loader"' in file.path.read_text()
        del source
    assert samples(file.path.read_text()) == {}


def test_a_failure_is_said_once_and_the_last_file_stays(tmp_path, caplog):
    source = Source()
    with (
        caplog.at_level(logging.WARNING),
        PrometheusFile(tmp_path / "run.prom", source, interval_s=0.001) as file,
    ):
        before = file.path.read_text()
        source.known = OSError("no space left")
        time.sleep(0.1)
        assert file.path.read_text() == before
    assert [record.getMessage() for record in caplog.records] == [
        f"the statistics cannot be written to {file.path}: OSError: no space left"
    ]


def test_two_files_of_one_path_are_refused_until_the_first_is_closed_or_gone(tmp_path):
    source = Source()
    (tmp_path / "same").symlink_to(tmp_path)
    with PrometheusFile(tmp_path / "run.prom", {"train": source}, interval_s=60) as file:
        for path in ("run.prom", "same/run.prom"):
            with pytest.raises(ConfigurationError, match=r"run\.prom.*no other PrometheusFile of this process writes"):
                PrometheusFile(tmp_path / path, {"eval": source})
        PrometheusFile(tmp_path / "other.prom", {"eval": source}).close()
        assert 'loader="train"' in file.path.read_text()
    unclosed = PrometheusFile(tmp_path / "run.prom", source, interval_s=60)
    del unclosed
    gc.collect()
    PrometheusFile(tmp_path / "run.prom", source).close()
    with pytest.raises(ConfigurationError, match="can be written"):
        PrometheusFile(tmp_path / "nowhere" / "run.prom", source)
    (tmp_path / "nowhere").mkdir()
    PrometheusFile(tmp_path / "nowhere" / "run.prom", source).close()


@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"path": "run.txt"}, "path"),
        ({"loaders": {"a": 1}}, "loaders"),
        ({"labels": {"rank": "1"}}, "labels"),
        ({"labels": {"a-b": "1"}}, "labels"),
    ],
)
def test_what_cannot_work_is_refused(changed, argument, tmp_path):
    source = Source()
    given = {"path": "run.prom", "loaders": source} | changed
    with pytest.raises(ConfigurationError, match=argument):
        PrometheusFile(**given | {"path": tmp_path / given["path"]})
