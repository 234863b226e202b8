"""Datasets in a store, through a node's cache, with a server that does what servers do."""

import collections
import itertools
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from proxy import FaultServer
from proxy.faults import ENDING_KINDS, RandomPlan, fault
from streaming_examples import numbers, write
from walks import wait_until

from fkat_data import ShardedDataLoader
from fkat_data.errors import ConfigurationError, DownloadError, ShardNotFoundError
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

COUNT, LARGER_COUNT = 97, 640
OPTIONS = {"batch_size": 4, "shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 40, "download_timeout": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "numbers", COUNT, hashes=["sha256"])


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """64 shards of 20 kB, of which no process needs many at a time."""
    folder = tmp_path_factory.mktemp("data") / "larger"
    columns = {"number": "int", "text": "str", "filler": "bytes"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=20_800, hashes=["sha256"]) as writer:
        for number in range(LARGER_COUNT):
            writer.write({"number": number, "text": f"sample {number}", "filler": bytes(2000)})
    return folder


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "zip", COUNT, hashes=["sha256"], compression="zstd")


@pytest.fixture
def serve(processes):
    """Return a function that serves a directory, with faults."""
    with_exits = []

    def served(directory, plan=None, **options):
        server = FaultServer(Path(directory), plan, **options)
        with_exits.append(server)
        return server.__enter__()

    yield served
    for server in with_exits:
        server.__exit__()


def shards(directory):
    return sorted(path.name for path in Path(directory).iterdir() if path.name.startswith("shard."))


def epoch(**options):
    return numbers(StreamingDataLoader(StreamingDataset(**OPTIONS | options)))


def gets(server, directory):
    return [server.count(name) for name in shards(directory)]


@pytest.mark.parametrize("keep_zip", [False, True])
@pytest.mark.parametrize("kind", ["raw", "zip"])
def test_an_epoch_is_that_of_the_directory_and_fetches_each_file_once(
    data, compressed, serve, tmp_path, kind, keep_zip
):
    directory = data if kind == "raw" else compressed
    server, local = serve(directory), str(tmp_path / "local")
    options = {"remote": server.url, "local": local, "keep_zip": keep_zip, "validate_hash": "sha256"}
    whole = epoch(remote=directory)
    assert epoch(**options) == whole
    assert set(gets(server, directory)) == {1}
    assert epoch(**options) == whole
    assert set(gets(server, directory)) == {1}
    assert server.count("index.json") == 2  # held against one another
    left = shards(local)
    assert len([name for name in left if name.endswith(".mds")]) == len(shards(directory))
    assert (len(left) > len(shards(directory))) == (kind == "zip" and keep_zip)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_workers_of_the_sharded_loader_stream_one_shard_and_resume(
    nothing_left_behind, data, serve, tmp_path, num_workers
):
    server, local = serve(data), str(tmp_path / "local")
    url = server.url

    def factory(shard):
        del shard
        return StreamingDataLoader(StreamingDataset(remote=url, local=local, **OPTIONS))

    whole = epoch(local=data)
    with ShardedDataLoader(0, ["all"], factory, num_workers_per_shard=num_workers) as loader:
        first = numbers(itertools.islice(loader, 7))
        state = loader.state_dict()
        assert loader.statistics().store_s > 0
    # What a worker was fetching when its loader was closed is fetched again.
    kept = shards(local)
    assert kept
    with ShardedDataLoader(0, ["all"], factory, num_workers_per_shard=4 - num_workers) as resumed:
        resumed.load_state_dict(state)
        assert first + numbers(resumed) == whole
    assert {server.count(name) for name in kept} == {1}
    assert set(gets(server, data)) <= {1, 2}


def test_shards_are_fetched_before_they_are_needed(data, serve, tmp_path):
    server = serve(data)
    dataset = StreamingDataset(
        remote=server.url, local=str(tmp_path / "local"), batch_size=1, shuffle=False, predownload=COUNT
    )
    samples = iter(dataset)
    assert next(samples)["number"] == 0
    wait_until(lambda: set(gets(server, data)) == {1})
    assert [sample["number"] for sample in samples] == list(range(1, COUNT))


@pytest.mark.usefixtures("processes")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1_000_000), probability=st.sampled_from([0.3, 0.9]), num_workers=st.sampled_from([0, 0, 1]))
def test_under_faults_that_end_every_sample_arrives_once(data, tmp_path_factory, seed, probability, num_workers):
    plan = RandomPlan(seed, probability, longest=3)
    faults = [plan.get("index.json", attempt) for attempt in range(3)]
    # Nothing states the size of the index: the same addition to both copies that are compared stays unnoticed.
    assume([found.kind for found in faults if found].count("longer") < 2)
    local = tmp_path_factory.mktemp("local")
    with FaultServer(Path(data), plan) as server:
        dataset = StreamingDataset(
            remote=server.url, local=str(local), download_retry=4, validate_hash="sha256", **OPTIONS
        )
        assert numbers(StreamingDataLoader(dataset, num_workers=num_workers)) == epoch(local=data)
    shutil.rmtree(local)


#: Kinds that do not end, and what the error says of them.
ENDLESS = {
    "status": "503",
    "reset": "",
    "end": "",
    "end_unsized": "bytes",
    "flip": "sha256",
    "xml": "bytes",
    "stall": "",
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_fault_that_does_not_end_is_an_error_at_the_sample_that_it_concerns_every_time(
    data, serve, tmp_path, kind, num_workers
):
    bad = "shard.00004.mds"
    plan = {bad: [fault(kind, **ENDING_KINDS.get(kind, {}))]}
    server = serve(data, plan, forever=True)
    options = {"batch_size": 1, "shuffle": False, "download_retry": 1, "download_timeout": 0.5}
    dataset = StreamingDataset(remote=server.url, local=str(tmp_path / "local"), validate_hash="sha256", **options)
    first_bad = int(dataset.sample_offset_per_shard[4])
    for _ in range(2):
        got, began_s = [], time.monotonic()
        with pytest.raises(DownloadError, match=bad) as caught:
            got.extend(batch["number"].item() for batch in StreamingDataLoader(dataset, num_workers=num_workers))
        assert time.monotonic() - began_s < 60
        assert got == list(range(first_bad))
        assert ENDLESS[kind] in str(caught.value)
        dataset.next_epoch = 0
    assert bad not in shards(tmp_path / "local")


def test_shards_are_prepared_and_evicted_by_number(data, serve, tmp_path):
    server, local = serve(data), tmp_path / "local"
    dataset = StreamingDataset(remote=server.url, local=str(local), **OPTIONS)
    index_bytes = Path(data, "index.json").stat().st_size
    assert dataset.cache_usage == index_bytes
    dataset.prepare_shard(3)
    dataset.prepare_shard(1)
    assert shards(local) == ["shard.00001.mds", "shard.00003.mds"]
    size = Path(data, "shard.00003.mds").stat().st_size
    assert dataset.cache_usage == index_bytes + size + Path(data, "shard.00001.mds").stat().st_size
    sample = dataset.get_item(int(dataset.sample_offset_per_shard[3]))
    assert sample["number"] == dataset.sample_offset_per_shard[3]
    assert dataset.evict_coldest_shard() > 0
    assert shards(local) == ["shard.00003.mds"]
    assert dataset.evict_shard(3) == size
    assert dataset.evict_shard(3) == 0
    assert shards(local) == []
    assert dataset.get_item(0)["number"] == 0
    for wrong in (-1, 10_000, "3"):
        with pytest.raises(ConfigurationError, match="shard_id"):
            dataset.prepare_shard(wrong)


def test_a_batch_of_more_shards_than_may_be_open_is_whole(data, serve, tmp_path, monkeypatch):
    dataset = StreamingDataset(remote=serve(data).url, local=str(tmp_path / "local"), **OPTIONS)
    monkeypatch.setattr("fkat_data.streaming.reading.open_shards._MOST_CACHED_OPEN", 2)
    assert numbers(StreamingDataLoader(dataset)) == epoch(local=data)


def test_a_dataset_that_was_written_again_replaces_what_was_kept(tmp_path, serve):
    remote, local = tmp_path / "remote", str(tmp_path / "local")
    write(remote, 40, first=10)
    # Forked before this process has used the cache.
    with multiprocessing.get_context("fork").Pool(1) as pool:
        server = serve(remote)
        assert sorted(itertools.chain(*epoch(remote=server.url, local=local))) == list(range(10, 50))
        # Files of the same names and sizes, with other numbers in them.
        time.sleep(1.1)  # HTTP tells the time of a change by the second
        write(remote, 40, first=50, exist_ok=True)
        # This process has used the cache: nobody else may empty it.
        with pytest.raises(ConfigurationError, match="another job"):
            pool.apply(epoch, kwds={"remote": server.url, "local": local})
        assert sorted(itertools.chain(*epoch(remote=server.url, local=local))) == list(range(50, 90))
        assert min(itertools.chain(*pool.apply(epoch, kwds={"remote": server.url, "local": local}))) == 50


def test_a_dataset_whose_directory_another_one_of_its_process_has_taken_says_so(tmp_path, serve):
    for name, first in (("a", 10), ("b", 50)):  # files of the same names and sizes
        write(tmp_path / name, 40, first=first)
    local = str(tmp_path / "local")
    before = StreamingDataset(remote=serve(tmp_path / "a").url, local=local, **OPTIONS)
    assert before[0]["number"] == 10
    os.utime(tmp_path / "b" / "index.json", (1_000_000_000, 1_000_000_000))
    after = StreamingDataset(remote=serve(tmp_path / "b").url, local=local, **OPTIONS)
    assert after[0]["number"] == 50
    with pytest.raises(ConfigurationError, match="another dataset"):
        before[39]


def test_a_cache_is_read_while_its_store_is_down(data, serve, tmp_path, caplog):
    server, local = serve(data), str(tmp_path / "local")
    whole = epoch(remote=server.url, local=local)
    server.down()
    assert epoch(remote=server.url, local=local, download_retry=0) == whole
    assert "from its copy" in caplog.text


def test_a_wall_clock_that_jumps_changes_nothing(data, serve, tmp_path, monkeypatch):
    now_s, draw = time.time(), random.Random(3)
    monkeypatch.setattr(time, "time", lambda: now_s + draw.choice([-1, 0, 1]) * 3.2e8)
    plan = {name: [fault("status", status=503, retry_after="0"), fault("reset")] for name in shards(data)}
    dated = {"shard.00003.mds": [fault("status", status=429, retry_after="Fri, 31 Dec 1999 23:59:59 GMT")]}
    sizes = [Path(data, name).stat().st_size for name in shards(data)]
    options = {"cache_limit": Path(data, "index.json").stat().st_size + 5 * max(sizes), "download_retry": 3}
    for first in (-3.2e8, 3.2e8, 0):
        remote, local = serve(data, {**plan, **dated}).url, tmp_path / "local"
        assert epoch(remote=remote, local=str(local), **options) == epoch(local=data)
        for path in local.glob("*.mds"):
            os.utime(path, (now_s + first, now_s + first))


def test_a_cache_is_not_read_where_its_store_refuses(data, serve, tmp_path):
    local = str(tmp_path / "local")
    epoch(remote=serve(data).url, local=local)
    server = serve(data, {name: 9 * [fault("status", status=403)] for name in ("HEAD index.json", "index.json")})
    with pytest.raises(DownloadError, match="403") as caught:
        epoch(remote=server.url, local=local, download_retry=3)
    assert caught.value.num_attempts == 1


def test_without_a_local_directory_shards_are_kept_in_one_of_this_users(data, serve, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = serve(data)
    for _ in range(2):
        assert epoch(remote=server.url) == epoch(local=data)
    assert set(gets(server, data)) == {1}
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"fkat_data-{os.geteuid()}"


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_directory_of_this_user_that_others_may_write_to_is_refused(
    is_remote, compressed, serve, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"fkat_data-{os.geteuid()}").mkdir()
    (tmp_path / f"fkat_data-{os.geteuid()}").chmod(0o777)
    with pytest.raises(ConfigurationError, match="every user may write to it"):
        epoch(remote=serve(compressed).url if is_remote else str(compressed))


def _rank(url, local, nodes, ranks, rank, seconds, queue, **options):
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(nodes * ranks), "LOCAL_WORLD_SIZE": str(ranks)})
    # Time enough on any machine: an attempt that is given up would be another request.
    options = OPTIONS | {"download_timeout": 60, "validate_hash": "sha256"} | options
    dataset = StreamingDataset(remote=url, local=local, **options)
    seen = []
    for batch in StreamingDataLoader(dataset):
        assert batch["text"] == [f"sample {number}" for number in batch["number"].tolist()]
        seen += batch["number"].tolist()
        time.sleep(seconds)
    queue.put((rank, seen))


class Job:
    """Ranks in processes of their own, forked: they start at once."""

    def __init__(self, nodes, ranks, url, local_of_node, seconds=0.02, **options):
        context = multiprocessing.get_context("fork")
        self.queue = context.Queue()
        self.processes = []
        for rank in range(nodes * ranks):
            arguments = (url, local_of_node(rank // ranks), nodes, ranks, rank, seconds, self.queue)
            self.processes.append(context.Process(target=_rank, args=arguments, kwargs=options))
            self.processes[-1].start()

    def kill(self, ranks):
        for rank in ranks:
            os.kill(self.processes[rank].pid, signal.SIGKILL)

    def read(self, but=()):
        """What each rank has read, but for those that were killed."""
        try:
            found = dict(self.queue.get(timeout=120) for _ in range(len(self.processes) - len(but)))
        finally:
            for process in self.processes:
                process.join(60)
        assert [process.exitcode for process in self.processes if process.exitcode] == [-signal.SIGKILL] * len(but)
        return found


def test_ranks_of_two_jobs_fetch_each_shard_once(data, serve, tmp_path):
    server, local = serve(data), str(tmp_path / "local")
    jobs = [Job(1, 2, server.url, lambda _: local) for _ in range(2)]
    for job in jobs:
        assert set().union(*job.read().values()) == set(range(COUNT))
    assert set(gets(server, data)) == {1}


@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_two_jobs_on_a_cache_of_a_tenth_read_rightly_whoever_is_killed(larger, serve, tmp_path, rounds, monkeypatch):
    server, local = serve(larger), tmp_path / "local"
    removals = tmp_path / "removals"
    removals.touch()
    unlink = os.unlink

    def noted(name, *, dir_fd=None):
        if dir_fd is not None:
            with removals.open("ab", buffering=0) as file:  # a descriptor of its own: forked ranks have this, too
                file.write(f"{name}\n".encode())
        return unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", noted)
    num_killed = 0
    limit = sum(path.stat().st_size for path in larger.iterdir()) // 10
    draw = random.Random(7)
    for number in range(rounds):
        # Each job makes room by its own limit, and counts the files of both.
        limits = (limit, limit * (1 + number % 2))
        jobs = [Job(1, 4, server.url, lambda _: str(local), 0.005, cache_limit=own) for own in limits]
        time.sleep(draw.uniform(0, 0.6))
        killed = [rank for rank in range(4) if draw.random() < 0.5]
        alive = [rank for rank in killed if jobs[0].processes[rank].is_alive()]
        jobs[0].kill(alive)
        # A rank that was killed while it told what it had read may keep the others from telling: not asked.
        for process in jobs[0].processes:
            process.join(60)
            assert process.exitcode in (0, -signal.SIGKILL)
        assert sorted(set().union(*jobs[1].read().values())) == list(range(LARGER_COUNT))
        # A shard is fetched once, again each time it was evicted, and once more for a death while it was fetched.
        num_killed += sum(process.exitcode == -signal.SIGKILL for process in jobs[0].processes)
        removed = collections.Counter(removals.read_text().split())
        fetched = dict(zip(shards(larger), gets(server, larger), strict=True))
        assert sum(fetched.values()) >= len(fetched)
        assert all(count <= 1 + removed[name] + num_killed for name, count in fetched.items()), (fetched, removed)
        assert sum(fetched.values()) <= len(fetched) + removed.total() + 8 * num_killed
    dataset = StreamingDataset(remote=server.url, local=str(local), cache_limit=limit, **OPTIONS)
    assert not list(Path(local, ".fkat_data", "making").iterdir())
    assert sorted(itertools.chain(*numbers(StreamingDataLoader(dataset)))) == list(range(LARGER_COUNT))
    wait_until(lambda: dataset.cache_usage <= limit)


def test_nodes_fetch_the_shards_of_their_own_part(data, serve, tmp_path):
    server = serve(data)
    job = Job(2, 2, server.url, lambda node: str(tmp_path / f"node-{node}"), num_canonical_nodes=2)
    assert sorted(set().union(*job.read().values())) == list(range(COUNT))
    # Both need the shard at the edge of their parts, and one needs the sample that fills up the other's end.
    assert sum(gets(server, data)) <= len(shards(data)) + 2
    assert set(gets(server, data)) <= {1, 2}


def named_in(place, name):
    return {key: value.replace("%", name) if isinstance(value, str) else value for key, value in place.items()}


def test_a_file_that_is_no_stream_is_named_with_what_would_do(tmp_path, data, processes):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    (folder / "train.csv").write_bytes(bytes(100))
    (folder / "below").mkdir()
    (folder / "below" / "x.txt").write_text("x")
    places = [
        {"local": f"{folder}/%"},
        {"remote": f"{folder}/%"},
        {"remote": f"{folder}/%/"},
        {"remote": str(folder), "split": "%"},
    ]
    with FaultServer(folder) as server:
        places += [{"remote": f"{server.url}/%?signature=s", "local": str(tmp_path / "web")}]
        for place in places:
            for name, advice in {
                "train.csv": r"a file\. A stream is a directory of shards.*fkat-data convert.*MDSWriter",
                "index.json": "name its directory",
                "shard.00000.mds": "name its directory",
            }.items():
                named = named_in(place, name)
                with pytest.raises(ShardNotFoundError, match=rf"data/{name}'|:\d+/{name}'") as caught:
                    StreamingDataset(batch_size=4, download_retry=0, **named)
                assert re.search(advice, str(caught.value)), named
                assert "signature" not in str(caught.value)
            with pytest.raises(ShardNotFoundError, match=r"below/index\.json': no such file"):
                StreamingDataset(batch_size=4, download_retry=0, **named_in(place, "below"))
