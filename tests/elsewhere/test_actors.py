"""Microbatches made by actors, on one node and on two, which are killed."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import leavings
import psutil
import pytest
import torch
from interpreters import environment_of
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from worker_protocol import check_worker

from fkat_data import DataLoader, ShardedDataLoader
from fkat_data.errors import ConfigurationError, WorkerDiedError
from fkat_data.testing.contracts import WorkerContract

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from ray._private.state import actors as all_actors  # noqa: E402 - it needs Ray

from fkat_data.ray import Actors  # noqa: E402 - it needs Ray

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster(shared_processes):
    """Nodes on this machine, by their resources: ``here``, ``there``, and two that are ``lost``, the first in a test."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the paths of Ray's sockets must be short
    os.environ |= {
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_worker_niceness": "0",  # else actors start when no other test computes
        "RAY_prestart_worker_first_driver": "0",  # a process for each CPU, of which few become actors
    }
    made = cluster_utils.Cluster()
    made.add_node(num_cpus=4, resources={"here": 4}, include_dashboard=False, temp_dir=folder)
    made.add_node(num_cpus=4, resources={"there": 4})
    made.lost, _ = (made.add_node(num_cpus=2, resources={"lost": 1}) for _ in range(2))
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def processes_beside(cluster, processes):
    """Permit the test to start processes; those of Ray's stay for the next actors, and end with the cluster."""
    yield
    for node in psutil.Process().children():
        if node.name() == "raylet":
            leavings.SHARED.update(("process", each.pid) for each in node.children(recursive=True))


def actors(where="here", **options):
    return Actors(num_cpus=0.1, resources={where: 0.1}, **options)


def living():
    """The actors of this program that are there."""
    return [each["ActorID"] for each in all_actors().values() if each["State"] != "DEAD"]


def settled():
    deadline_s = time.monotonic() + 30
    while living() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return not living()


class Item:
    """A class of the script's own, which a node cannot import."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return type(other) is Item and other.number == self.number

    __hash__ = None


Item.__module__ = "__main__"


class Samples(Dataset):
    """Numbers with a draw of torch's global generator, and an object of the script's own class."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == 13 and os.environ.get("RAY_TEST_SLOW"):
            time.sleep(60)
        return {"number": torch.tensor(index), "drawn": torch.rand(()), "object": Item(index)}


def together(samples):
    return {
        name: [each[name] for each in samples] if name == "object" else torch.stack([each[name] for each in samples])
        for name in samples[0]
    }


def plain(microbatch):
    return [microbatch["number"].tolist(), microbatch["drawn"].tolist(), [each.number for each in microbatch["object"]]]


def loader(**options):
    return DataLoader(Samples(), 4, shuffle=True, seed=2, collate_fn=together, **options)


def read(**options):
    with loader(**options) as made:
        return [plain(microbatch) for microbatch in made]


def test_an_actor_does_what_the_protocol_says(cluster):
    check_worker(actors())


def test_actors_make_the_same_bits_and_a_killed_one_is_named_or_replaced(cluster, caplog):
    expected = read()
    with loader(num_workers=2, workers=actors()) as made:
        iterator = iter(made)
        found = [plain(next(iterator)) for _ in range(3)]
        state = made.state_dict()
        assert len(living()) == 2
        assert [plain(microbatch) for microbatch in iterator] == expected[3:]
    assert settled()
    with loader(num_workers=1, workers=actors(), max_worker_restarts=1) as made:
        made.load_state_dict(state)
        iterator = iter(made)
        found.append(plain(next(iterator)))
        _kill_one()
        with caplog.at_level(logging.WARNING):
            found += [plain(microbatch) for microbatch in iterator]
        assert made.statistics().worker_restarts == 1
    assert found == expected
    assert "another worker replaces it" in caplog.text
    with loader(num_workers=1, workers=actors(), prefetch_factor=1) as made:
        iterator = iter(made)
        next(iterator)
        _kill_one()
        with pytest.raises(WorkerDiedError, match=r"microbatch \d+ of the dataset"):
            list(iterator)
    assert settled()


def _kill_one():
    [there] = (each for each in all_actors().values() if each["State"] == "ALIVE")
    os.kill(there["Pid"], signal.SIGKILL)


class Stuck(Dataset):
    """Writes down which processes make it; item 40 kills its process, or waits forever, the first time."""

    def __init__(self, file):
        self.file = file

    def __len__(self):
        return 120

    def __getitem__(self, index):
        time.sleep(0.01)
        if index == 40 and self.file.exists():
            self.file.unlink()
            os.kill(os.getpid(), signal.SIGSTOP if self.file.name == "wait" else signal.SIGKILL)
        self.file.with_name(f"pid {os.getpid()}").touch()
        return index


@pytest.mark.parametrize(("how", "timeout_s"), [("die", 0), ("wait", 3)])
def test_the_actors_beside_one_that_is_lost_go_on(cluster, tmp_path, how, timeout_s):
    file = tmp_path / how
    file.touch()
    options = {"max_worker_restarts": 1, "timeout": timeout_s, "collate_fn": list}
    with DataLoader(Stuck(file), 4, shuffle=True, seed=1, num_workers=3, workers=actors(), **options) as made:
        found, statistics = list(made), made.statistics()
        assert len(living()) == 3
    expected = DataLoader(Stuck(file), 4, shuffle=True, seed=1, collate_fn=list)
    assert found == list(expected)
    assert len([*tmp_path.glob("pid *")]) <= 4 + 1  # and this one
    assert statistics.worker_restarts == 1
    assert [making.num for making in statistics.made_on.values()] == [statistics.produced]
    assert settled()


class Late(Samples):
    """Takes two seconds to come to an actor."""

    def __setstate__(self, state):
        time.sleep(2)
        vars(self).update(state)


def test_the_start_of_an_actor_is_no_stall_and_has_a_limit_of_its_own(cluster):
    options = {"num_workers": 2, "timeout": 1, "max_worker_restarts": 0, "collate_fn": together}
    late = Late()
    late.field = 1  # an object without a field has no state to set
    with DataLoader(late, 4, workers=actors(), **options) as made:
        assert len(list(made)) == 15
    never = Actors(num_cpus=1000, start_timeout_s=1)
    with DataLoader(Samples(), 4, workers=never, **options) as made:
        words = r"it did not start within 1 s \(start_timeout_s\): an actor needs 1000 CPU \([\d.]+ free of 12\) on one node"
        with pytest.raises(WorkerDiedError, match=words):
            list(made)
    assert settled()


def test_a_node_that_goes_takes_no_microbatch_with_it(cluster):
    expected = read()
    with loader(num_workers=2, workers=actors("lost"), max_worker_restarts=3, prefetch_factor=2) as made:
        iterator = iter(made)
        found = [plain(next(iterator)) for _ in range(3)]
        cluster.remove_node(cluster.lost)
        found += [plain(microbatch) for microbatch in iterator]
        assert made.statistics().worker_restarts > 0
    assert found == expected


def by_object(objects, **options):
    return DataLoader(Numbers(), 2, sampler=objects, num_workers=2, workers=actors(), **options)


class Numbers(Dataset):
    """Is asked for objects of the script's own class."""

    def __len__(self):
        return 6

    def __getitem__(self, wanted):
        assert type(wanted).__name__ == "Item"  # the module that an actor imports has a class of its own
        return wanted.number


def test_indices_are_of_any_class_and_one_that_cannot_be_sent_is_an_error(cluster):
    with by_object([Item(index) for index in range(6)]) as made:
        assert torch.cat(list(made)).tolist() == list(range(6))
    with by_object([Item(0), Item(threading.Lock())]) as made, pytest.raises(TypeError, match="lock"):
        list(made)


KILLED = """
import sys, time
import ray
from fkat_data import DataLoader
from fkat_data.ray import Actors

ray.init(address=sys.argv[1], log_to_driver=False)
loader = DataLoader(list(range(1000)), 4, num_workers=2, workers=Actors(num_cpus=0.1, resources={"here": 0.1}))
iterator = iter(loader)
next(iterator)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_killed_trainer_leaves_no_actor(cluster, processes, tmp_path):
    (tmp_path / "trainer.py").write_text(KILLED)
    command = [sys.executable, tmp_path / "trainer.py", cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment_of()) as trainer:
        try:
            assert trainer.stdout.readline() == "ready\n"
            assert len(living()) == 2
        finally:
            trainer.kill()
    assert settled()


class Strand(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(range(info.id, 30, info.num_workers))


def rows(samples):
    return [torch.tensor([each, int(torch.randint(100, ()))]) for each in samples for _ in range(each % 3)]


def in_a_row(shard):
    for index in range(5):
        yield {"shard": shard, "draw": torch.rand(2), "index": index}


@pytest.mark.parametrize(
    "made",
    [
        lambda kinds: DataLoader(Strand(), 4, num_workers=2, **kinds),
        lambda kinds: DataLoader(
            list(range(60)), 4, shuffle=True, seed=1, window_fn=rows, window_size=9, num_workers=2, **kinds
        ),
        lambda kinds: ShardedDataLoader(1, ["a", "b"], in_a_row, num_shard_prefetches=1, **kinds),
        lambda kinds: ShardedDataLoader(
            1,
            ["a", "b"],
            lambda shard: TorchDataLoader(list(range(9)), 2, shuffle=True),
            num_workers_per_shard=2,
            **kinds,
        ),
    ],
    ids=["strands", "windows", "generators", "shards"],
)
def test_every_kind_of_task_is_made_as_by_processes(cluster, processes_beside, made):
    found = []
    for kinds in ({"workers": "processes"}, {"workers": actors("there")}):
        with made(kinds) as each:
            found.append([repr(microbatch) for microbatch in each])
    assert found[0] == found[1]


def test_an_error_names_the_machine_that_it_was_raised_on(cluster):
    def bad(shard):
        raise OSError(f"no {shard}")

    with (
        ShardedDataLoader(0, ["a"], bad, workers=actors()) as made,
        pytest.raises(OSError, match="no a") as caught,
    ):
        list(made)
    assert any("raised in process" in note for note in caught.value.__notes__)


EXAMPLE = Path(__file__).parents[2] / "docs/examples/cluster/train.py"


def test_the_example_loses_a_node_and_no_bit(cluster, processes, tmp_path):
    environment = environment_of()
    expected = subprocess.run([sys.executable, EXAMPLE], stdout=subprocess.PIPE, text=True, env=environment, check=True)
    environment["RAY_ADDRESS"] = cluster.address
    command, log = [sys.executable, EXAMPLE], tmp_path / "log"
    with log.open("w") as err, subprocess.Popen(command, stdout=-1, stderr=err, text=True, env=environment) as trainer:
        found = [trainer.stdout.readline() for _ in range(20)]
        homes = {each["Address"]["NodeID"] for each in all_actors().values() if each["State"] == "ALIVE"}
        cluster.remove_node(next(node for node in cluster.worker_nodes if node.node_id in homes))
        found += trainer.stdout
    assert "".join(found) == expected.stdout
    assert "another worker replaces it" in log.read_text()
    assert settled()


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"num_cpus": -1}, "num_cpus"),
        ({"placement": "anywhere"}, "placement"),
        ({"start_timeout_s": 0}, "start_timeout_s"),
    ],
)
def test_actors_that_cannot_be_are_refused_by_the_argument(options, argument):
    with pytest.raises(ConfigurationError, match=f"^{argument} = "):
        Actors(**options)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
class TestActors(WorkerContract):
    stall_timeout_s = 3.0

    def options(self):
        return {"workers": actors()}

    def left(self):
        return living()
