"""Each contract finds out an implementation that breaks it, and says what is wrong."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fkat_data.streaming.order import BlockShuffle
from fkat_data.testing import contracts


def failures(contract, folder):
    """Return the message of each test of a contract that fails, by its name."""
    found = {}
    for name in [name for name in dir(contract) if name.startswith("test_")]:
        place = folder / name
        place.mkdir()
        test = getattr(contract, name)
        try:
            test(place) if "tmp_path" in test.__code__.co_varnames else test()
        except AssertionError as error:
            found[name] = str(error)
    return found


class Shuffled(contracts.ShuffleContract):
    def __init__(self, change):
        self.change = change

    def make(self, *numbers):
        own = BlockShuffle(*numbers)
        return type(
            "Changed", (), {"samples_at": lambda _, positions: self.change(own.samples_at(positions), positions)}
        )()


def from_global_generator(samples, positions):
    return (samples + random.randrange(2)) % max(len(samples), 1)


@pytest.mark.parametrize(
    ("change", "test"),
    [
        (lambda samples, positions: samples // 2, "test_each_sample_has_one_position"),
        (lambda samples, positions: np.sort(samples), "test_any_positions_can_be_asked_for"),
        (lambda samples, positions: samples.astype(np.int32), "test_any_positions_can_be_asked_for"),
        (lambda samples, positions: positions.sort() or samples, "test_any_positions_can_be_asked_for"),
        (lambda samples, positions: positions.copy(), "test_seed_and_epoch_change_the_order"),
        (from_global_generator, "test_the_order_depends_on_its_arguments_alone"),
    ],
    ids=["twice", "by the call", "dtype", "sorts the positions", "no shuffle", "global generator"],
)
def test_a_wrong_shuffle_is_found_out(change, test, tmp_path):
    assert test in failures(Shuffled(change), tmp_path)


class Counter:
    """The numbers from 0 on, with faults by name."""

    def __init__(self, fault):
        self.fault, self.next, self.shared = fault, 0, {}

    def __iter__(self):
        while True:
            self.next += 1
            yield self.next - 1

    def state_dict(self):
        if self.fault == "late":
            return {"next": max(self.next - 1, 0)}
        if self.fault == "moves":
            self.next += 1
        if self.fault == "alias":
            self.shared["next"] = self.next
            return self.shared
        return {"next": np.int64(self.next) if self.fault == "numpy" else self.next}

    def load_state_dict(self, state):
        if self.fault == "takes all":
            self.next = state.get("next", 5)
        elif self.fault != "fresh" or self.next == 0:
            self.next = state["next"]


class Counted(contracts.StateContract):
    def __init__(self, fault):
        self.fault = fault

    def make(self):
        return Counter(self.fault)


@pytest.mark.parametrize(
    ("fault", "test", "message"),
    [
        ("late", "test_a_resume_at_each_item_changes_nothing", "what follows a resume after 1 items"),
        ("moves", "test_saving_moves_nothing", "differs"),
        ("alias", "test_saving_moves_nothing", "the state after 1 items, at the end of the loop"),
        ("takes all", "test_what_is_no_state_is_refused", "expected Exception"),
        ("fresh", "test_an_object_under_way_goes_where_the_state_says", "what follows position 0"),
    ],
)
def test_a_wrong_state_is_found_out(fault, test, message, tmp_path):
    assert message in failures(Counted(fault), tmp_path)[test]


def test_a_right_state_passes(tmp_path):
    assert failures(Counted(None), tmp_path) == {}


def test_a_state_that_is_not_plain_is_found_out():
    with pytest.raises(Exception, match="weights_only"):
        Counted("numpy").test_a_resume_at_each_item_changes_nothing()


class Leaving:
    """Leaves microbatches where they are."""

    copies = False
    copied_s = 0.0

    def begin(self, microbatch):
        return microbatch

    def finish(self, moving):
        return moving

    def wait(self):
        pass


class Rounding(Leaving):
    def finish(self, moving):
        return {name: value.to(torch.float16).to(value.dtype) for name, value in moving.items()}


class Aliasing(Leaving):
    copies = True


class Swapping(Leaving):
    """Finishes the newest first."""

    def __init__(self):
        self.begun = []

    def begin(self, microbatch):
        self.begun.append(microbatch)
        return microbatch

    def finish(self, moving):
        return self.begun.pop()


@pytest.mark.parametrize(
    ("mover", "test"),
    [
        (Rounding, "test_values_dtypes_and_shapes_arrive"),
        (Aliasing, "test_the_source_is_not_changed_and_may_be_used_again_after_wait"),
        (Swapping, "test_several_microbatches_are_under_way_at_once"),
    ],
)
def test_a_wrong_mover_is_found_out(mover, test):
    contract = contracts.MoverContract()
    contract.make = mover
    with pytest.raises(AssertionError, match="the moved microbatch differs"):
        getattr(contract, test)()


class Lines(contracts.FormatContract):
    """Texts in lines, with faults by name."""

    def __init__(self, fault):
        self.fault = fault

    def samples(self):
        return [f"text {number}" for number in range(30)]

    def write(self, samples, folder):
        stamp = [str(random.random())] if self.fault == "stamp" else ["head"]
        (folder / "lines.txt").write_text("\n".join([*stamp, *samples]))

    def open(self, folder):
        lines = (folder / "lines.txt").read_text().split("\n")[1:]
        return ReadLines(lines, self.fault)


class ReadLines:
    def __init__(self, lines, fault):
        self.lines, self.fault, self.last = lines, fault, 0

    def __len__(self):
        return len(self.lines) - (self.fault == "short")

    def __getitem__(self, index):
        if self.fault == "endless":
            return self.lines[index % len(self.lines)]
        if self.fault == "in order":
            index, self.last = max(index, self.last), index
        return self.lines[index]

    def __getstate__(self):
        return self.__dict__ | ({"lines": self.lines[::-1]} if self.fault == "pickle" else {})


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("short", "test_samples_come_back_as_they_were_written"),
        ("in order", "test_any_order_gives_the_same_samples"),
        ("endless", "test_an_index_out_of_range_is_an_index_error"),
        ("pickle", "test_a_pickled_dataset_reads_the_same"),
        ("stamp", "test_two_writes_give_the_same_files"),
        (None, "test_a_file_that_was_cut_loses_no_sample_in_silence"),
    ],
)
def test_a_wrong_format_is_found_out(fault, test, tmp_path):
    assert test in failures(Lines(fault), tmp_path)


def test_no_contract_needs_pytest_or_is_collected_by_itself():
    folder = Path(contracts.__file__).parent
    assert not any(
        re.search(r"^\s*(import|from) pytest", path.read_text(), re.MULTILINE) for path in folder.glob("*.py")
    )
    assert not any(name.startswith("Test") for name in contracts.__all__)
