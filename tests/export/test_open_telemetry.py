import dataclasses

import pytest
from loader_examples import epoch, make

from fkat_data import LoaderStatistics
from fkat_data.errors import ConfigurationError
from fkat_data.export import METRICS, export_to_open_telemetry
from fkat_data.export.open_telemetry import open_telemetry_name


def collected(reader):
    """Every point: its name, attributes and value."""
    found = reader.get_metrics_data()
    return {
        (metric.name, tuple(sorted(point.attributes.items()))): point.value
        for resource in (found.resource_metrics if found else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_what_is_collected_are_the_statistics():
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    loader = make(["list-a-3"])
    export_to_open_telemetry({"train": loader}, provider, {"run": "x"})
    epoch(loader)
    found, statistics = collected(reader), loader.statistics()
    shared = (("loader", "train"), ("rank", 0), ("run", "x"))
    assert found["fkat_data.delivered", shared] == 3
    quantile = (("loader", "train"), ("quantile", "p99"), ("rank", 0), ("run", "x"))
    assert found["fkat_data.making", quantile] == statistics.making.p99_s
    names = {open_telemetry_name(metric.name) for metric in METRICS} | {"fkat_data.waiting", "fkat_data.making"}
    assert {name for name, _ in found} == names
    epoch(loader)
    assert collected(reader)["fkat_data.delivered", shared] == 6
    del loader
    assert not collected(reader)
    provider.shutdown()


class CountedSource:
    """A loader that delivers one microbatch each time it is asked."""

    asked = 0

    def statistics(self):
        self.asked += 1
        return LoaderStatistics(delivered=self.asked, produced=self.asked)


def test_a_collection_asks_each_loader_once_and_shows_one_moment():
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    view = pytest.importorskip("opentelemetry.sdk.metrics.view")
    readers = [export.InMemoryMetricReader() for _ in range(2)]
    # The program may leave out numbers, here the first that is asked for.
    dropped = view.View(instrument_name="fkat_data.delivered", aggregation=view.DropAggregation())
    for views in ([], [dropped]):
        source = CountedSource()
        provider = sdk.MeterProvider(readers, views=views)
        export_to_open_telemetry(source, provider)
        for count in range(1, 7):
            found = collected(readers[count % 2])
            of_loader = {
                value for (name, _), value in found.items() if name in ("fkat_data.delivered", "fkat_data.produced")
            }
            assert (source.asked, of_loader) == (count, {count})
        provider.shutdown()
        readers = [export.InMemoryMetricReader() for _ in range(2)]


def test_no_two_numbers_share_a_name():
    assert len({open_telemetry_name(metric.name) for metric in METRICS}) == len(METRICS)
    assert open_telemetry_name("fkat_data_waited_first_seconds_total") == "fkat_data.waited_first"


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.metrics", None)
    with pytest.raises(ConfigurationError, match=r"fkat_data\[opentelemetry\]"):
        export_to_open_telemetry(dataclasses.make_dataclass("Loader", ["statistics"])(dict))
