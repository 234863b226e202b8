"""A copy, and a state, at every point of a loader's life: what it delivers is what it says."""

import copy
import json
import pickle
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from drop_in_examples import (
    Continuing,
    Counting,
    CountingEpochs,
    Drawing,
    FromGenerator,
    Further,
    FurtherAtOnce,
    FurtherInPlace,
    Lengths,
    Remembering,
    Rewinding,
    RewindingInPlace,
)
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, RandomSampler, SequentialSampler
from walks import at_state, begun

from fkat_data import DataLoader, StateMismatchError
from fkat_data.datasets import (
    BufferSortedDataset,
    DictDataset,
    PackedDataset,
    ResumableSequentialSampler,
    TokenBudgetBatchSampler,
)
from fkat_data.mixing import DictBatchSampler, Weighted

SAMPLES = range(23)


def repeated(rows):
    """As many rows of each sample as its number says, none too."""
    return [row for row in rows for _ in range(row % 3)]


def broken_at_four(rows):
    return [row for row in rows if row != 4]


def mixed(samplers):
    names = {"a": 1.0, "b": 2.0}
    dataset = DictDataset({name: [{"x": index} for index in SAMPLES] for name in names})
    return DataLoader(dataset, batch_sampler=DictBatchSampler(Weighted(names), samplers), collate_fn=list)


def in_batches(sampler):
    return BatchSampler(sampler, 3, drop_last=False)


def generator():
    return torch.Generator().manual_seed(5)


LENGTHS = [1 + 7 * index % 5 for index in range(40)]
DOCUMENTS = [torch.full((length,), index) for index, length in enumerate(LENGTHS)]
WINDOWS = {"window_fn": repeated, "window_size": 4}
KINDS = {
    "in order": lambda: DataLoader(SAMPLES, 3),
    "shuffled": lambda: DataLoader(Drawing(23), 3, shuffle=True, seed=4),
    "single samples": lambda: DataLoader(SAMPLES, None, shuffle=True, seed=4),
    "a list": lambda: DataLoader(SAMPLES, 3, sampler=[*reversed(SAMPLES)]),
    "torch's sampler": lambda: DataLoader(SAMPLES, 3, sampler=RandomSampler(SAMPLES, generator=generator())),
    "a distributed one": lambda: DataLoader(SAMPLES, 2, sampler=DistributedSampler(SAMPLES, 2, 1)),
    "a generator": lambda: DataLoader(SAMPLES, 3, sampler=FromGenerator(23, generator()), seed=2),
    "a sampler that continues": lambda: DataLoader(SAMPLES, 3, sampler=Continuing(23)),
    "a sampler that rewinds": lambda: DataLoader(SAMPLES, 3, sampler=Rewinding(23)),
    "a sampler that rewinds in place": lambda: DataLoader(SAMPLES, 3, sampler=RewindingInPlace(23)),
    "batches that rewind": lambda: DataLoader(SAMPLES, batch_sampler=in_batches(Rewinding(23))),
    "a further epoch": lambda: DataLoader(SAMPLES, 3, sampler=Further(23)),
    "a further epoch in place": lambda: DataLoader(SAMPLES, 3, sampler=FurtherInPlace(23)),
    "batches of a further epoch": lambda: DataLoader(SAMPLES, batch_sampler=in_batches(Further(23))),
    "a further epoch at once": lambda: DataLoader(SAMPLES, 3, sampler=FurtherAtOnce(23)),
    "single samples of a further epoch": lambda: DataLoader(SAMPLES, None, sampler=Further(7)),
    "a counted epoch": lambda: DataLoader(SAMPLES, 3, sampler=CountingEpochs(23)),
    "from an index on": lambda: DataLoader(SAMPLES, 3, sampler=ResumableSequentialSampler(SAMPLES)),
    "by tokens": lambda: DataLoader(range(40), batch_sampler=TokenBudgetBatchSampler(LENGTHS, 12, 20, seed=3)),
    "mixed batches": lambda: mixed({name: in_batches(SequentialSampler(SAMPLES)) for name in "ab"}),
    "mixed by tokens": lambda: mixed(
        {name: TokenBudgetBatchSampler(Lengths(23), 12, 12, seed=seed) for seed, name in enumerate("ab")}
    ),
    "packed": lambda: DataLoader(PackedDataset(DOCUMENTS, 8, 8, lengths=LENGTHS, seed=1), 2, collate_fn=list),
    "sorted": lambda: DataLoader(BufferSortedDataset(Lengths(23), 8, 4, init_seed=3), 3),
    "windows": lambda: DataLoader(SAMPLES, 3, shuffle=True, seed=4, **WINDOWS),
    "single rows": lambda: DataLoader(SAMPLES, None, **WINDOWS),
    "windows of a sampler": lambda: DataLoader(SAMPLES, 3, sampler=FromGenerator(23, generator()), seed=2, **WINDOWS),
    "windows that rewind": lambda: DataLoader(SAMPLES, 3, sampler=Rewinding(23), **WINDOWS),
    "skipped samples": lambda: DataLoader(
        [*SAMPLES], 3, shuffle=True, seed=4, window_fn=broken_at_four, window_size=4, on_sample_error="skip"
    ),
    "iterable": lambda: DataLoader(Counting(23), 3, seed=1),
    "iterable with a state": lambda: DataLoader(Remembering(23), 3, seed=1),
}


def pickled(loader):
    return pickle.loads(pickle.dumps(loader))


def shown(microbatches):
    return [repr(microbatch) for microbatch in microbatches]


def after(loader, *steps):
    for step in steps:
        step(loader)
    return loader


def go(count):
    def do(loader):
        loader.kept = begun(loader, count)

    return do


def go_on(count):
    return lambda loader: [next(loader.kept) for _ in range(count)]


def to_the_end(loader):
    for _ in loader:
        pass


def end(loader):
    loader.end_epoch()


def take_back(loader):
    assert loader.take_back()


def look(loader):
    loader.kept = iter(loader)


def reload(loader):
    loader.load_state_dict(loader.state_dict())


LIVES = {
    "new": (),
    "begun": (look,),
    "within": (go(3),),
    "within, far": (go(5),),
    "at the end": (to_the_end,),
    "within the second": (to_the_end, go(3)),
    "left": (go(3), go(2)),
    "left and begun": (go(3), look),
    "ended": (go(3), end),
    "ended at the start": (look, end),
    "ended, and on": (go(3), end, go(2)),
    "taken back": (go(3), take_back),
    "taken back to the start": (go(1), take_back),
    "taken back, then ended": (go(2), take_back, end),
    "loaded within": (go(3), reload),
    "loaded within, begun": (go(3), reload, look),
    "loaded within, on": (go(2), reload, look, go_on(2)),
    "loaded at the end": (to_the_end, reload),
    "loaded, then ended": (go(3), reload, end),
    "loaded, then ended, on": (go(3), reload, end, go(2)),
    "loaded twice": (go(3), reload, look, go_on(1), reload),
    "ended, then loaded": (go(3), end, reload),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_at_any_point_of_its_life_says_what_a_loader_delivers_next(kind, some):
    for name, life in some(LIVES.items(), 3):
        loader = after(KINDS[kind](), *life)
        state = json.loads(json.dumps(loader.state_dict()))
        place = loader.epoch, loader.step
        other = at_state(KINDS[kind](), state)
        assert (other.epoch, other.step) == place, name
        is_under_way = loader.step and life[-1] != reload
        rest = shown(loader.kept if is_under_way else loader)
        assert shown(other) == rest, name
        assert (other.epoch, other.step) == (loader.epoch, loader.step), name
        assert shown(other) == shown(loader), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied_by", [copy.deepcopy, pickled])
def test_a_copy_at_any_point_of_a_loaders_life_delivers_what_it_says(kind, copied_by, some):
    for name, life in some(LIVES.items(), 3):
        loader = after(KINDS[kind](), *life)
        is_under_way = loader.step and life[-1] != reload
        kept, loader.kept = getattr(loader, "kept", None), None
        copied = copied_by(loader)
        is_resumed = not is_under_way
        assert copied.epoch == loader.epoch, name
        assert copied.step == (loader.step if is_resumed else 0), name
        state = copied.state_dict()
        delivered = shown(copied)
        assert shown(at_state(KINDS[kind](), json.loads(json.dumps(state)))) == delivered, name
        rest = shown(kept if is_under_way else loader)
        assert delivered[len(delivered) - len(rest) :] == rest, name
        assert shown(copied) == shown(loader), name


@pytest.mark.parametrize("kind", ["by tokens", "mixed batches"])
@pytest.mark.parametrize("copied_by", [copy.deepcopy, pickled])
def test_a_copy_follows_the_epoch_that_the_program_sets_in_its_sampler(kind, copied_by):
    whole, loader = KINDS[kind](), KINDS[kind]()
    epochs = []
    for number in range(3):
        whole.batch_sampler.set_epoch(number)
        epochs.append(shown(whole))
    assert epochs[1] != epochs[0]
    loader.batch_sampler.set_epoch(0)
    to_the_end(loader)
    copied = copied_by(loader)
    for each in (copied, loader):
        each.batch_sampler.set_epoch(1)
        assert shown(each) == epochs[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_a_loop_has_begun_with_stays_the_one_that_was_loaded(kind):
    """Until a microbatch is delivered, whatever the samplers have drawn for it."""
    loader = after(KINDS[kind](), reload, look)
    state = json.loads(json.dumps(loader.state_dict()))
    assert shown(at_state(KINDS[kind](), state)) == shown(loader.kept)


@pytest.mark.parametrize("sampler", [Further, FurtherAtOnce, FurtherInPlace])
def test_a_sampler_that_begins_a_further_epoch_each_time_does_so_after_one_that_was_left(sampler):
    whole = DataLoader(SAMPLES, 3, sampler=sampler(23))
    _, second, third = shown(whole), shown(whole), shown(whole)
    loader = after(DataLoader(SAMPLES, 3, sampler=sampler(23)), go(3))
    assert shown(loader) == second
    assert shown(loader) == third


@dataclass
class Crop:
    """What a sampler may give instead of an index."""

    index: int
    size: int


class Valued(Further):
    """Gives a value for each index, which no saved state holds."""

    def __init__(self, count, form):
        super().__init__(count)
        self.form = form

    def __iter__(self):
        return map(VALUES.get(self.form, int), super().__iter__())


class Stacked(Valued):
    """Gives batches that are one tensor."""

    def __iter__(self):
        return map(torch.tensor, in_batches(super().__iter__()))


class OfValues(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, value):
        return value.index if isinstance(value, Crop) else int(value[0] if isinstance(value, tuple) else value)


VALUES = {"NumPy's": np.int64, "pairs": lambda index: (index, 224), "objects": lambda index: Crop(index, 224)}
VALUES["tensors"] = torch.tensor


def dealt(form):
    loader = DataLoader(OfValues(), 3, sampler=Valued(23, form))
    loader.deal_out(2, 1)
    return loader


OF_VALUES = {
    "alone": lambda form: DataLoader(OfValues(), 3, sampler=Valued(23, form)),
    "windows": lambda form: DataLoader(OfValues(), 3, sampler=Valued(23, form), **WINDOWS),
    "dealt out": dealt,
    "stacked": lambda form: DataLoader(OfValues(), batch_sampler=Stacked(23, form)),
}


@pytest.mark.parametrize("copied_by", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize(("kind", "form"), [*product(["alone", "windows", "dealt out"], VALUES), ("stacked", "plain")])
def test_a_copy_begins_the_epoch_again_whatever_its_sampler_gives(kind, form, copied_by):
    make = partial(OF_VALUES[kind], form)

    whole = make()
    epochs = [shown(whole) for _ in range(2)]
    loader = after(make(), go(3))
    loader.kept = None
    other = copied_by(loader)
    assert [shown(other), shown(other)] == epochs


@pytest.mark.parametrize("kinds", [{}, WINDOWS])
@pytest.mark.parametrize("sampler", [Further, FurtherAtOnce, FurtherInPlace])
def test_a_state_from_before_a_samplers_first_iteration_is_refused_where_it_would_begin_another_epoch(sampler, kinds):
    def make():
        return DataLoader(SAMPLES, 3, sampler=sampler(23), **kinds)

    first, second = make(), make()
    state = second.state_dict()
    epochs = [shown(second), shown(second)]
    shown(first)
    loader = make()
    loader.load_state_dict(first.state_dict())
    with pytest.raises(StateMismatchError, match="new sampler"):
        loader.load_state_dict(state)
    assert shown(loader) == epochs[1]
    new = make()
    new.load_state_dict(state)
    assert shown(new) == epochs[0]


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: FromGenerator(23, generator()),
        lambda: RandomSampler(SAMPLES, generator=generator()),
        lambda: Continuing(23),
        lambda: CountingEpochs(23),
        lambda: Rewinding(23),
        lambda: RewindingInPlace(23),
        lambda: ResumableSequentialSampler(SAMPLES),
    ],
)
def test_a_state_from_before_a_samplers_first_iteration_loads_after_one_of_a_later_epoch(sampler):
    first = DataLoader(SAMPLES, 3, sampler=sampler(), seed=2)
    state = first.state_dict()
    epoch = shown(first)
    loader = DataLoader(SAMPLES, 3, sampler=sampler(), seed=2)
    loader.load_state_dict(first.state_dict())
    loader.load_state_dict(state)
    assert shown(loader) == epoch


@pytest.mark.parametrize("kinds", [{}, WINDOWS])
@pytest.mark.parametrize("sampler", [Further, FurtherAtOnce])
def test_a_state_of_a_sampler_that_goes_on_to_a_further_epoch_loads_into_a_used_loader(sampler, kinds, some):
    def make():
        return DataLoader(SAMPLES, 3, sampler=sampler(23), **kinds)

    whole = make()
    epochs = [shown(whole) for _ in range(4)]
    for num_before, step, num_used in some([*product(range(2), [None, *range(5)], range(1, 3))], 5):
        loader, used = make(), make()
        for _ in range(num_before):
            shown(loader)
        if step is not None:  # None: no loop has begun
            begun(loader, step)
        state = json.loads(json.dumps(loader.state_dict()))
        for _ in range(num_used):
            shown(used)
        next(iter(used))
        used.load_state_dict(state)
        place = used.epoch, used.step
        assert place == (num_before, step or 0)
        assert shown(used) == epochs[num_before][step:]
        assert shown(used) == epochs[num_before + 1]


@pytest.mark.parametrize(
    "sampler",
    [lambda: FromGenerator(23, generator()), lambda: Rewinding(23), lambda: Further(23), lambda: CountingEpochs(23)],
)
def test_behind_windows_that_a_loop_has_left_a_sampler_begins_the_epoch_that_it_begins_behind_all_of_them(sampler):
    whole = DataLoader(SAMPLES, 3, sampler=sampler(), seed=2, **WINDOWS)
    epochs = [shown(whole) for _ in range(3)]
    for step in range(1, 6):
        loader = after(DataLoader(SAMPLES, 3, sampler=sampler(), seed=2, **WINDOWS), go(step))
        assert [shown(loader), shown(loader)] == epochs[1:], step


def test_windows_of_a_sampler_that_goes_on_to_a_further_epoch_resume_in_a_new_loader():
    for num_whole in range(3):
        for step in range(5):
            loader = DataLoader(SAMPLES, 3, sampler=Further(23), **WINDOWS)
            for _ in range(num_whole):
                shown(loader)
            kept = begun(loader, step)
            other = at_state(
                DataLoader(SAMPLES, 3, sampler=Further(23), **WINDOWS), json.loads(json.dumps(loader.state_dict()))
            )
            assert shown(other) == shown(kept)
            assert shown(other) == shown(loader)
