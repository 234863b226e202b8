"""Has a real Prometheus collect the file of a real run, and asks it for every expression of the dashboard.

    apt-get download prometheus prometheus-node-exporter   # or from prometheus.io
    for package in *.deb; do dpkg -x $package /tmp/prometheus; done
    scripts/try_dashboard.py /tmp/prometheus/usr/bin

Needs these programs in the folder that is given, or on the path. Takes half a minute.
"""

import contextlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from fkat_data import ShardedDataLoader
from fkat_data.export import PrometheusFile

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "docs/dashboards/fkat_data.json"
PAGE = ROOT / "docs" / "howto" / "monitor.md"
SCRAPE_S = 1
RUN_S = 15.0


class Slow(Dataset[torch.Tensor]):
    """Samples that take 3 ms each, so that training waits for some."""

    def __init__(self, shard: str) -> None:
        self.shard = shard

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.003)
        return torch.full((1000,), index)


def batches(shard: str) -> DataLoader[torch.Tensor]:
    """Return the microbatches of a shard."""
    return DataLoader(Slow(shard), batch_size=4)


def train(path: Path) -> None:
    """Iterate over two loaders for a while, and have their numbers in a file."""
    loaders = {name: ShardedDataLoader(0, list("abcd"), batches, 1) for name in ("train", "valid")}
    with PrometheusFile(path, loaders, interval_s=SCRAPE_S / 2, labels={"run": "try"}):
        end_s = time.monotonic() + RUN_S
        while time.monotonic() < end_s:
            for loader in loaders.values():
                for _ in loader:
                    time.sleep(0.004)
                    if time.monotonic() > end_s:
                        break
    for loader in loaders.values():
        loader.close()


def free_address() -> str:
    """Return an address on loopback that no program has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def running(*command: str) -> Iterator[None]:
    """Run a program."""
    with subprocess.Popen([*command, "--log.level=error"]) as process:
        try:
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def prometheus(programs: dict[str, str], folder: Path) -> Iterator[str]:
    """Run a Prometheus that asks a node_exporter for the files of a folder; yield the URL of its API."""
    exporter, address = free_address(), free_address()
    job = {"job_name": "node", "static_configs": [{"targets": [exporter]}]}
    settings = {"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    only_files = ("--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={folder}")
    of_prometheus = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    with (
        running(programs["prometheus-node-exporter"], f"--web.listen-address={exporter}", *only_files),
        running(programs["prometheus"], f"--web.listen-address={address}", *of_prometheus),
    ):
        yield f"http://{address}/api/v1"


def answer(url: str, path: str, **parameters: str) -> Any:
    """Return the data that the API answers with."""
    query = urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(f"{url}/{path}?{query}", timeout=30) as response:  # noqa: S310 - http, see above
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{parameters}: {error.read().decode()}") from None


def filled_in(expression: str, chosen: dict[str, str]) -> str:
    """Return an expression as Grafana sends it, with all values of each variable chosen."""
    for name, values in {**chosen, "__rate_interval": f"{4 * SCRAPE_S}s"}.items():
        expression = re.sub(rf"\${name}\b", values, expression)
    return expression


def chosen_values(api: str, variables: list[dict[str, Any]]) -> dict[str, str]:
    """Return what Grafana fills in for the dashboard's variables, if all values are chosen."""
    chosen: dict[str, str] = {}
    for variable in variables:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", str(variable.get("definition", "")))
        if found:
            values = answer(api, f"label/{found[2]}/values", **{"match[]": found[1]})
            chosen[variable["name"]] = f"({'|'.join(values)})"
    return chosen


def check(api: str) -> Iterator[str]:
    """Yield what does not work of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text())
    chosen = chosen_values(api, dashboard["templating"]["list"])
    print(f"variables: {chosen}")
    end_s = time.time()
    window = {"start": str(end_s - RUN_S), "end": str(end_s), "step": "1"}
    for panel in dashboard["panels"]:
        print(panel["title"])
        for target in panel["targets"]:
            series = answer(api, "query_range", query=filled_in(target["expr"], chosen), **window)["result"]
            if not series:
                yield f"{panel['title']} ({target['refId']}): no data"
            for each in series:
                yield from check_series(panel, target["legendFormat"], each)


def check_series(panel: dict[str, Any], legend: str, series: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the points of one line of a panel."""
    for label in re.findall(r"\{\{(\w+)\}\}", legend):
        if label not in series["metric"]:
            yield f"{panel['title']}: no label {label}"
        legend = legend.replace(f"{{{{{label}}}}}", series["metric"].get(label, "?"))
    numbers = [float(value) for _, value in series["values"]]
    shown = [number for number in numbers if not math.isnan(number)]  # Grafana leaves a gap for NaN
    print(f"    {legend}: {len(shown)} of {len(numbers)} points, at most {max(shown, default=math.nan):.4g}")
    if not shown:
        yield f"{panel['title']} ({legend}): no point has a number"
    bounds = panel["fieldConfig"]["defaults"]
    if shown and not bounds.get("min", -math.inf) <= min(shown) <= max(shown) <= bounds.get("max", sys.float_info.max):
        yield f"{panel['title']} ({legend}): a point outside of the panel"


def main() -> None:
    """Run, ask, and report."""
    given = sys.argv[1] if len(sys.argv) > 1 else None
    programs: dict[str, str] = {}
    for program in ("prometheus", "prometheus-node-exporter", "promtool"):
        found = shutil.which(program, path=given)
        if found is None:
            sys.exit(f"{program} is not in {given or os.environ.get('PATH')}")
        programs[program] = found
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with prometheus(programs, folder) as api:
            train(folder / "run.prom")
            faults = list(check(api))
        rules = re.findall(r"```yaml\n(groups:.*?)```", PAGE.read_text(), re.DOTALL)
        (folder / "rules.yml").write_text(rules[0])
        text = (folder / "run.prom").read_bytes()
        faults += [
            f"promtool check {arguments[0]}"
            for arguments in (["metrics"], ["rules", str(folder / "rules.yml")])
            if subprocess.run([programs["promtool"], "check", *arguments], input=text, check=False).returncode
        ]
    print("\n".join(faults or ["every panel has data"]))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
