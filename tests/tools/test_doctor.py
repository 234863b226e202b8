"""``doctor`` shows each finding once, with what to change, and its exit code is that of the worst."""

import json
import resource
import sys
from functools import partial
from pathlib import Path

import command_examples
import numpy as np
import psutil
import pytest

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from fkat_data.tools import examine

run = partial(command_examples.run, "doctor")


def test_the_machine_is_examined_as_text_and_as_json(tmp_path):
    code, output = run("--cache", tmp_path)
    assert code in (0, 1), output
    assert "start of workers" in output
    again, text = run("--cache", tmp_path, "--json")
    assert again == code
    found = json.loads(text)
    assert found["level"] == ("ok", "advice")[code]
    assert {"versions", "machine", "storage"} < set(found)
    assert {"subject", "level", "found", "change"} == set(found["machine"][0])


def test_a_loader_and_its_worker_are_examined(tmp_path, processes):
    config = tmp_path / "run.yaml"
    config.write_text(
        "loader:\n  _target_: fkat_data.ShardedDataLoader\n  seed: 0\n  shard_sampler: [a, b]\n"
        "  dataloader_factory: {_target_: fkat_data.DataLoaderFactory, batch_size: 2,\n"
        "    dataset_generator: {_target_: builtins.list, _partial_: true}}\n"
    )
    code, output = run(config, "--json")
    assert code in (0, 1), output
    found = {finding["subject"]: finding["found"] for finding in json.loads(output)["configuration"]}
    assert found["workers"].startswith("1 on ")
    assert found["shards"] == "2 on this rank in an epoch"


def test_a_configuration_that_fails_is_wrong(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(
        "loader:\n  _target_: fkat_data.ShardedDataLoader\n  seed: 0\n  shard_sampler: [a]\n"
        "  dataloader_factory: {_target_: fkat_data.DataLoaderFactory, dataset_generator: 3}\n"
    )
    code, output = run(config)
    assert code == 2
    assert "cannot be instantiated" in output


def by_subject(part, **options):
    return {finding.subject: finding for finding in examine(**options)[part]}


def test_this_environment_is_in_order_and_names_no_tool_of_development():
    found = by_subject("versions")
    assert {finding.level for finding in found.values()} == {"ok"}
    assert list(found)[:2] == ["fkat_data", "python"]
    assert {"torch", "pyarrow"} < set(found)
    assert "pytest" not in found


@pytest.mark.parametrize(("name", "level"), [("numpy", "wrong"), ("pyarrow", "advice")])
def test_a_package_that_is_too_old_is_named_with_what_to_install(tmp_path, monkeypatch, name, level):
    about = tmp_path / f"{name}-0.1.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    finding = by_subject("versions")[name]
    assert (finding.level, finding.found.partition(";")[0]) == (level, "0.1")
    assert f"pip install '{name}>=" in finding.change


def test_a_low_limit_on_open_files_is_named():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for soft, level in ((300, "advice"), (200, "wrong")):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
            finding = by_subject("machine")["open files"]
            assert finding.level == level
            assert "ulimit -n" in finding.change
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("own", "files", "subject", "level", "words"),
    [
        ("0::/job/a", {"job/a/cpu.max": "max 100000", "job/cpu.max": "50000 100000"}, "CPU quota", "advice", "0.5"),
        ("0::/of/the/host", {"cpu.max": "50000 100000"}, "CPU quota", "advice", "0.5 cores, not"),
        ("0::/job", {"job/cpu.max": "100000000 100000"}, "CPU quota", "ok", "1e+03 cores"),
        (
            "3:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000"},
            "CPU quota",
            "advice",
            "0.5",
        ),
        (
            "0::/job",
            {"job/pids.max": "90", "job/pids.current": "30", "pids.max": "50", "pids.current": "40"},
            "processes of the group",
            "wrong",
            "permits 10 more",
        ),
        (
            "0::/job",
            {"job/memory.max": str(200 << 20), "job/memory.current": "0", "job/memory.stat": ""},
            "control group",
            "advice",
            "leaves 180 MiB",
        ),
        ("", {"proc/driver/nvidia/version": "NVRM version 570.1 x"}, "GPU", "wrong", "570.1"),
    ],
)
def test_what_the_kernel_grants_is_read_from_its_files(tmp_path, own, files, subject, level, words):
    for name, text in {"proc/self/cgroup": own, **files}.items():
        path = tmp_path / ("" if name.startswith("proc/") else "sys/fs/cgroup") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    finding = by_subject("machine", root=tmp_path)[subject]
    assert finding.level == level
    assert words in f"{finding.found} {finding.change}"
    assert level == "ok" or finding.change


def storage(directory):
    return examine(directories=[directory])["storage"]


def test_a_directory_that_does_not_exist_yet_is_judged_by_the_one_above_it(tmp_path):
    assert {finding.level for finding in storage(tmp_path / "not" / "yet")} <= {"ok", "advice"}
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").touch()
    assert storage(tmp_path / "file")[0].level == "wrong"


def test_a_cache_in_memory_is_advice():
    if not Path("/dev/shm").is_dir():
        pytest.skip("this system has no /dev/shm")
    assert "in memory (tmpfs)" in storage(Path("/dev/shm"))[0].found


def factory(shard):
    raise RuntimeError("the doctor reads no data")


factory.num_microbatches = len


def examined(make):
    return by_subject("configuration", make_loader=make)


def test_a_loader_of_shards_is_described(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        (tmp_path / path).write_bytes(bytes(1024))
    closed = []

    class Loader(ShardedDataLoader):
        def close(self):
            closed.append(self)
            super().close()

    found = examined(lambda: Loader(0, paths, factory, multiprocessing=False))
    assert {finding.level for finding in found.values()} <= {"ok"}, found
    assert found["shards"].found == "2 on this rank in an epoch, 2 KiB of files"
    assert found["epoch"].found == f"{sum(map(len, paths)):,} microbatches on this rank"
    assert closed


def test_missing_shards_are_named_and_keys_of_the_users_own_are_none(tmp_path):
    found = examined(lambda: ShardedDataLoader(0, [str(tmp_path / "none")], factory, multiprocessing=False))
    assert found["shards"].level == "wrong"
    assert str(tmp_path / "none") in found["shards"].found
    found = examined(lambda: ShardedDataLoader(0, ["train", "test"], factory, multiprocessing=False))
    assert found["shards"].found == "2 on this rank in an epoch"


def test_a_length_that_is_not_known_is_advice_and_a_shard_that_cannot_be_opened_is_wrong():
    found = examined(lambda: ShardedDataLoader(0, iter(["a"]), lambda shard: [shard], multiprocessing=False))
    assert (found["epoch"].level, found["shards"].level) == ("advice", "ok")
    found = examined(lambda: ShardedDataLoader(0, ["train"], DataLoaderFactory(factory), multiprocessing=False))
    assert found["epoch"].level == "wrong"
    assert found["epoch"].found == "a shard cannot be opened: the doctor reads no data"


def test_a_streaming_loader_is_described_with_its_cache(tmp_path):
    with MDSWriter(out=str(tmp_path / "data"), columns={"number": "int"}, size_limit=200) as writer:
        for number in range(50):
            writer.write({"number": number})

    def make():
        dataset = StreamingDataset(remote=str(tmp_path / "data"), local=str(tmp_path / "cache"), batch_size=5)
        return StreamingDataLoader(dataset, num_workers=1, start_method="spawn")

    found = examined(make)
    assert found["epoch"].found == "10 microbatches on this rank"
    assert found["dataset"].found.startswith("50 samples in")
    assert found["workers"].found.startswith("1 on ")
    assert f"cache {tmp_path / 'cache'}" in found


def test_an_error_of_the_configuration_is_one_line():
    def make():
        raise ValueError("two\nlines")

    finding = examined(make)["configuration"]
    assert finding.level == "wrong"
    assert "ValueError: two lines" in finding.found


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_too_many_workers_are_advice_and_too_much_memory_is_wrong():
    options = {"num_workers": 4 * psutil.cpu_count() + 1, "memory_limit_bytes": 1 << 50, "start_method": "spawn"}
    found = examined(lambda: DataLoader([1, 2], **options))
    assert (found["workers"].level, found["memory"].level) == ("advice", "wrong")
    assert found["memory"].found.startswith("at most 1.02e+03 TiB")


class InMemory:
    def __init__(self):
        # Memory that nobody writes to takes none.
        self.images = np.zeros(psutil.virtual_memory().total // 2, np.uint8)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.images[index]


def test_data_above_a_quarter_of_the_memory_are_better_shared_by_a_fork():
    finding = examined(lambda: DataLoader(InMemory(), num_workers=1, start_method="spawn"))["data in memory"]
    assert (finding.level, finding.found.partition(" ")[0]) == ("advice", "dataset.images")
    assert "start_method='fork'" in finding.change
    not_sent = [{"num_workers": 0}, {"num_workers": 1, "start_method": "fork"}]
    if sys.version_info < (3, 14):
        not_sent.append({"num_workers": 1})
    for options in not_sent:
        assert "data in memory" not in examined(partial(DataLoader, InMemory(), **options))
