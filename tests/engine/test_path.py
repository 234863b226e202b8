"""The way of a microbatch through the trainer: which files, and how many calls of Python."""

import re
import sys
import time
from pathlib import Path

import pytest
import torch

import fkat_data
from fkat_data import ShardedDataLoader

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(fkat_data.__file__).parent
ARCHITECTURE = ROOT.parent / "docs" / "architecture.md"
MOST_FILES, MOST_CALLS = 8, 40
NUM_READY, NUM_COUNTED = 4, 200
#: Segments are made, and announced in the socket, until as many are there as the worker may be ahead.
NUM_WARMING = 1000

#: By name: the tensors of a microbatch, and the elements of each. The first two travel in the message itself.
FORMS = {"one tiny tensor": (1, 4), "two tiny tensors": (2, 4), "tokens": (3, 1024), "an image": (2, 100_000)}


class Samples(torch.utils.data.Dataset):
    """A shard of a length that is known: the path of nearly every user."""

    def __init__(self, form):
        self.num_fields, self.num_elements = FORMS[form]

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return {f"field {field}": torch.full((self.num_elements,), index) for field in range(self.num_fields)}


def samples(shard):
    return torch.utils.data.DataLoader(Samples(shard), batch_size=None)


def stream(shard):
    """Of a length that nobody knows: the loader reads one message ahead."""
    num_fields, num_elements = FORMS[shard]
    for index in range(1_000_000):
        yield {f"field {field}": torch.full((num_elements,), index) for field in range(num_fields)}


def calls_of(take):
    """Return the files and functions of the package that a call runs, in order, and the finalisers after it."""
    found = []

    def record(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            found.append((str(path.relative_to(ROOT)), frame.f_code.co_qualname))

    sys.setprofile(record)
    try:
        take()
    finally:
        sys.setprofile(None)
    return found


def counted(loader):
    """Return the calls of each of many warm microbatches.

    Warm: the worker has made it already, and its segment was used before (a segment comes and is mapped once). No shard
    ends among them, and the look-ahead learns from none: what happens once a shard, or once in several microbatches, is no
    part of a microbatch's path.
    """
    iterator = iter(loader)
    kept = [next(iterator)]
    for _ in range(NUM_WARMING):
        kept[0] = next(iterator)
    found = []

    def step():
        kept[0] = next(iterator)  # the one before dies here, as in a `for` loop: its finaliser counts

    deadline_s = time.monotonic() + 60
    while len(found) < NUM_COUNTED:
        assert time.monotonic() < deadline_s
        if loader.statistics().queue_depth < NUM_READY:
            time.sleep(0.001)
            continue
        calls = calls_of(step)
        names = {name for _, name in calls}
        if (
            not names
            & {"SegmentLeases.add", "SegmentLeases.remove", "LookAhead.deliver", "EventSink.waited_for_microbatch"}
            and "keep_from_programs" not in names  # a segment comes
            and not any(name.endswith("._wait") for name in names)
        ):
            found.append(calls)
    return found


@pytest.mark.parametrize("factory", [samples, stream])
@pytest.mark.parametrize("form", FORMS)
def test_a_warm_microbatch_takes_few_files_and_calls(form, factory):
    with ShardedDataLoader(0, [form], factory) as loader:
        worst = max(counted(loader), key=len)
    assert len(worst) <= MOST_CALLS, "\n".join(f"{path} {name}" for path, name in worst)
    assert len({path for path, _ in worst}) <= MOST_FILES, "\n".join(f"{path} {name}" for path, name in worst)


def test_the_documentation_names_the_files_of_the_path_in_their_order():
    text = ARCHITECTURE.read_text()
    said = re.search(r"The way of a microbatch through the trainer is eight files long: (.+?)\.\n", text)[1]
    with ShardedDataLoader(0, ["tokens"], samples) as loader:
        # What comes beside a new segment takes the socket; everything else the ring.
        found = [calls for calls in counted(loader) if "RingReader.read" in {name for _, name in calls}]
    orders = {tuple(dict.fromkeys(path for path, _ in calls)) for calls in found}
    named = tuple(re.findall(r"`([\w/]+\.py)`", said))
    # Memory that is free again comes first, where there is any.
    assert named in orders
    assert len(named) == max(map(len, orders))
