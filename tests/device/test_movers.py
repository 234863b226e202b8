import gc
from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from device_examples import LateEngine, deliver_by
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from walks import wait_until

from fkat_data.device import AcceleratorMover, HostMover, copier_for, mover_for
from fkat_data.errors import ConfigurationError
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from fkat_data.testing.contracts import MoverContract

MICROBATCH = {"tensor": torch.arange(3), "text": "a", "nested": [(torch.ones(2),)]}


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Record:
    x: Any
    name: str = "r"


@dataclass(frozen=True)
class Frozen:
    x: Any
    size: int = field(init=False, default=7)


class Encoding(UserDict):
    """As a tokenizer's: it moves itself."""

    def to(self, device):
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


def test_the_hosts_mover_leaves_a_microbatch_as_it_is():
    mover = HostMover()
    assert mover.finish(mover.begin(MICROBATCH)) is MICROBATCH
    assert mover.copied_s == 0


@pytest.mark.parametrize(
    ("microbatch", "tensors"),
    [
        (torch.ones(2), lambda moved: [moved]),
        ([torch.ones(2), "a", None, 3], lambda moved: moved[:1]),
        (Pair(torch.ones(2), {"b": torch.ones(1)}), lambda moved: [moved.left, moved.right["b"]]),
        (Record(torch.ones(2)), lambda moved: [moved.x]),
        (Encoding(ids=torch.ones(2), mask=torch.ones(1)), lambda moved: list(moved.values())),
        (pack_sequence([torch.ones(3), torch.ones(2)]), lambda moved: [moved.data]),
        ({"deep": [[(Record([torch.ones(2)]),)]]}, lambda moved: moved["deep"][0][0][0].x),
        (Frozen(torch.ones(2)), lambda moved: [moved.x] if moved.size == 7 else []),
        (OrderedDict(b=torch.ones(2), a="text"), lambda moved: [moved["b"]]),
        (MappingProxyType({"a": torch.ones(2)}), lambda moved: [moved["a"]]),
        (torch.sort(torch.ones(2)), lambda moved: [moved.values]),
    ],
)
def test_tensors_move_wherever_they_are_and_the_source_stays(microbatch, tensors):
    mover = AcceleratorMover(copier_for(torch.device("meta")))
    moved = mover.finish(mover.begin(microbatch))
    assert type(moved) is type(microbatch)
    assert tensors(moved)
    assert all(tensor.is_meta for tensor in tensors(moved))
    assert not any(tensor.is_meta for tensor in tensors(microbatch))


def test_a_tensor_that_is_there_twice_is_one_tensor_on_the_device():
    tensor = torch.ones(3)
    mover = AcceleratorMover(copier_for(torch.device("meta")))
    moved = mover.finish(mover.begin({"a": tensor, "b": [tensor]}))
    assert moved["a"] is moved["b"][0]


def test_the_source_is_kept_until_it_was_read():
    engine = LateEngine()
    mover = AcceleratorMover(engine)
    sources = [torch.full((5,), index) for index in range(3)]
    alive = [gc_count(source) for source in sources]
    moved = [mover.finish(mover.begin([source])) for source in sources]
    assert [gc_count(source) > before for source, before in zip(sources, alive, strict=True)] == [True] * 3
    engine.run_until(1)
    assert mover.copied_s == 0.5  # which looks at what is done
    assert [gc_count(source) > before for source, before in zip(sources, alive, strict=True)] == [False, False, True]
    engine.run_until(2)
    assert [one[0].tolist() for one in moved] == [[0] * 5, [1] * 5, [2] * 5]


def gc_count(value):
    """How many containers hold a value, this test's own list included."""
    return len([holder for holder in gc.get_referrers(value) if isinstance(holder, list)])


def test_a_mover_that_is_dropped_waits_for_its_copies():
    engine = LateEngine()
    mover = AcceleratorMover(engine)
    moved = mover.finish(mover.begin(torch.arange(4)))
    assert moved.tolist() == [99] * 4
    del mover
    gc.collect()
    wait_until(lambda: moved.tolist() == [0, 1, 2, 3])


def test_where_one_tensor_finds_no_room_the_others_are_kept_until_they_were_read():
    class Full(LateEngine):
        def copy(self, value):
            if value.numel() == 3:
                raise torch.OutOfMemoryError
            return super().copy(value)

    engine = Full()
    mover = AcceleratorMover(engine)
    microbatch = [torch.ones(2), torch.ones(3)]
    num_holders = len(gc.get_referrers(microbatch))
    with pytest.raises(torch.OutOfMemoryError):
        mover.begin(microbatch)
    gc.collect()
    assert len(gc.get_referrers(microbatch)) > num_holders
    engine.run_until(0)
    assert mover.copied_s == 0.25


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_every_tensor_is_handed_over():
    class Moved:
        def __init__(self):
            self.x = torch.ones(2)
            self.me = self

        def to(self, device):
            return self

    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    sparse = torch.ones(2, 2).to_sparse()
    compressed = torch.ones(2, 2).to_sparse_csr()
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    engine = LateEngine()
    mover = AcceleratorMover(engine)
    moving = mover.begin({"x": torch.ones(1)})
    mover.finish(moving._replace(microbatch=[nested, sparse, compressed, packed, Moved(), torch.ones(7)]))
    sizes = [tensor.numel() for tensor in engine.handed_over[0][1]]
    assert sizes == [5, 3, 8, 4, 3, 4, 4, 5, 3, 2, 7]
    assert isinstance(packed, PackedSequence)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_the_host_is_no_device_to_move_to(device):
    assert isinstance(mover_for(device), HostMover)


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "nowhere", 3.5, "cuda:x"])
def test_a_device_that_is_not_there_is_refused(device):
    if torch.cuda.is_available():
        pytest.skip("it may be there")
    with pytest.raises(ConfigurationError, match="device"):
        mover_for(device)


def test_another_device_is_used_at_once_where_many_microbatches_were_made_together(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"x": "int"}) as writer:
        for number in range(64):
            writer.write({"x": number})
    loader = StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=False), batch_size=4)
    batches = iter(loader)
    # Batches are made in runs of 4, 8, 16 and so on: this one is in the midst of the second.
    found = [next(batches)["x"] for _ in range(5)]
    deliver_by(loader, AcceleratorMover(copier_for(torch.device("meta"))))
    assert next(batches)["x"].is_meta
    deliver_by(loader, HostMover())
    found += [batch["x"] for batch in batches]
    # The sixth, and the seventh, which was moving already when the device changed again.
    assert [index for index, batch in enumerate(found, 1) if batch.is_meta] == [6]
    numbers = torch.cat([batch for batch in found if not batch.is_meta]).tolist()
    assert numbers == [number for number in range(64) if number // 4 not in (5, 6)]
    loader.close()


# How many copies may be late, and what waits for them; test_engine.py looks at every byte.


def test_copies_that_are_late_are_waited_for_before_memory_runs_out(remote):
    """They hold as much as the limit allows, and nobody else lets them go."""

    def large(shard):
        for index in range(20):
            yield torch.full((400_000,), index, dtype=torch.uint8)

    engine = LateEngine()
    with remote(["a"], large, memory_limit_bytes=1 << 20) as loader:
        deliver_by(loader, AcceleratorMover(engine))
        kept = list(loader)
        engine.run_until(len(engine.issued_copies) - 2)
        assert [int(microbatch.unique()) for microbatch in kept] == list(range(20))
        loader.set_device(None)


def test_the_host_waits_when_more_copies_would_not_be_faster():
    engine = LateEngine()
    mover = AcceleratorMover(engine)
    for index in range(10):
        mover.finish(mover.begin(torch.tensor([index])))
        assert engine.num_done >= index - 3
    assert engine.num_done == 6
    mover.wait()
    assert engine.num_done == 10


# Our own movers keep the contract, on the host and on a device whose copies are late.


class TestHost(MoverContract):
    def make(self):
        return HostMover()


class TestLate(MoverContract):
    def make(self):
        self.engine = LateEngine()
        return AcceleratorMover(self.engine)

    def settle(self, mover):
        self.engine.run_until(len(self.engine.issued_copies) - 2)


@pytest.mark.gpu
class TestCuda(MoverContract):
    device = torch.device("cuda")

    @pytest.fixture(autouse=True)
    def _device(self):
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")

    def make(self):
        return mover_for("cuda")


REGISTERED = """
import torch
from fkat_data import ConfigurationError
from fkat_data.device import HostMover, mover_for
from fkat_data.extensions import register_mover

class Elsewhere(HostMover):
    def __init__(self, device):
        self.device = device

register_mover("hpu", Elsewhere)
print(mover_for("hpu:1").device)
for name in ("nowhere", "cuda"):
    try:
        register_mover(name, Elsewhere)
    except ConfigurationError as error:
        print("torch knows" in str(error), "this package" in str(error))
"""


def test_a_registered_mover_serves_its_type_of_device(prepared, run_script):
    assert run_script(REGISTERED, by="fork").stdout == "hpu:1\nTrue False\nFalse True\n"
