import copy
import gc
import logging
import pickle
from collections import Counter
from itertools import chain, islice, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_examples import epoch, following, make, plain, same_state
from torch.utils.data import DataLoader

import fkat_data
from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.mixing import DictDataLoader, Frequency, RoundRobin, Weighted

ON_EXHAUSTED = ["drop", "restart", "stop"]


class Numbers:
    """A loader without a state: the same numbers in each pass."""

    def __init__(self, name, count):
        self.microbatches = [{"number": f"{name}{index}"} for index in range(count)]

    def __len__(self):
        return len(self.microbatches)

    def __iter__(self):
        return iter(self.microbatches)


class Remembering:
    """A loader with a state of its own, and no epoch to be asked for."""

    def __init__(self, name, count):
        self.name, self.count, self.passes, self.index, self.is_loaded = name, count, 0, 0, False

    def __iter__(self):
        if not self.is_loaded:
            self.index = 0
        self.is_loaded = False
        while self.index < self.count:
            self.index += 1
            yield {"number": f"{self.name}{self.passes}.{self.index - 1}"}
        self.end_pass()

    def end_pass(self):
        self.passes, self.index = self.passes + 1, 0

    def state_dict(self):
        return {"passes": self.passes, "index": self.index}

    def load_state_dict(self, state_dict):
        self.passes, self.index = state_dict["passes"], state_dict["index"]
        self.is_loaded = True


class InPlace(Remembering):
    """Its state is one object that changes, and that a load takes over."""

    passes, index = (
        property(
            lambda self, name=name: self.state[name], lambda self, value, name=name: self.state.update({name: value})
        )
        for name in ("passes", "index")
    )

    def __init__(self, name, count):
        self.state = {}
        super().__init__(name, count)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state, self.is_loaded = state_dict, True


class Lingering(Remembering):
    """After its last microbatch its state is the end of the pass, and the iteration after a load then gives nothing."""

    def end_pass(self):
        pass


def numbers(strategy, counts, on_exhausted="drop", kind=Numbers):
    return DictDataLoader(
        {name: kind(name, count) for name, count in counts.items()}, strategy, on_exhausted=on_exhausted
    )


def shown(loader):
    return [microbatch["number"] for microbatch in loader]


def walk(loader, num_epochs):
    """Yield each microbatch with the state before it."""
    while loader.epoch < num_epochs:
        state = loader.state_dict()
        for microbatch in loader:
            yield plain(microbatch), state
            state = loader.state_dict()


def test_each_microbatch_has_the_name_of_its_source():
    microbatches = list(numbers(RoundRobin(["a", "b"]), {"a": 1, "b": 1}))
    assert microbatches == [{"number": "a0", "dataset": "a"}, {"number": "b0", "dataset": "b"}]


def test_without_a_key_pairs_come():
    loader = DictDataLoader({"a": [1, 2], "b": ["x"]}, Frequency([["a", 1], ["b", 1]]), key=None)
    assert list(loader) == [("a", 1), ("b", "x"), ("a", 2)]


def test_a_source_that_runs_out_ends_the_epoch_and_the_others_go_on_in_the_next():
    loader = numbers(RoundRobin(["a", "b"]), {"a": 5, "b": 2}, "stop")
    assert shown(loader) == ["a0", "b0", "a1", "b1", "a2"]
    assert shown(loader) == ["a3", "b0", "a4", "b1"]


def test_a_source_that_was_at_its_end_when_the_epoch_began_begins_again():
    loader = numbers(RoundRobin(["a", "b"]), {"a": 2, "b": 1}, "stop")
    assert shown(loader) == ["a0", "b0", "a1"]  # b runs out; a has just given its last
    assert shown(loader) == ["a0", "b0", "a1"]


def test_a_source_that_runs_out_is_restarted_until_each_has_run_out():
    loader = numbers(RoundRobin(["a", "b"]), {"a": 4, "b": 1}, "restart")
    assert shown(loader) == ["a0", "b0", "a1", "b0", "a2", "b0", "a3", "b0"]


@pytest.mark.parametrize("on_exhausted", ON_EXHAUSTED)
def test_empty_sources_hang_nothing(on_exhausted):
    loader = numbers(Weighted({"a": 1, "b": 1}), {"a": 0, "b": 0}, on_exhausted)
    assert [shown(loader) for _ in range(3)] == [[], [], []]
    loader = numbers(RoundRobin(["a", "b"]), {"a": 2, "b": 0}, on_exhausted)
    assert shown(loader) == (["a0"] if on_exhausted == "stop" else ["a0", "a1"])


@pytest.mark.parametrize("on_exhausted", ON_EXHAUSTED)
def test_an_epoch_that_was_left_early_is_given_up(on_exhausted):
    loader = numbers(RoundRobin(["a", "b"]), {"a": 3, "b": 3}, on_exhausted)
    assert [microbatch["number"] for microbatch in islice(loader, 3)] == ["a0", "b0", "a1"]
    assert (loader.epoch, loader.step, loader.delivered) == (0, 3, {"a": 2, "b": 1})
    assert shown(loader)[:4] == ["a0", "b0", "a1", "b1"]
    assert loader.epoch == 2


def test_every_sample_comes_once_an_epoch_in_the_proportions_of_the_weights():
    loader = numbers(Weighted({"a": 2, "b": 1}, seed=3), {"a": 600, "b": 300})
    epochs = [shown(loader) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(shown(Numbers("a", 600)) + shown(Numbers("b", 300)))
    assert epochs[0] != epochs[1]
    assert 170 < sum(number[0] == "a" for number in epochs[0][:300]) < 230


def check_every_resume(made, num_epochs):
    """Compare what follows a resume with a run that nothing stopped, at every position."""
    run = list(walk(made(), num_epochs))
    microbatches = [microbatch for microbatch, _ in run]
    for position, (_, state) in enumerate(run):
        resumed = made()
        resumed.load_state_dict(copy.deepcopy(state))
        assert following(resumed, len(run) - position) == microbatches[position:], position
    return run


@pytest.mark.parametrize("on_exhausted", ON_EXHAUSTED)
@pytest.mark.parametrize("kind", [Numbers, Remembering, Lingering, InPlace])
@pytest.mark.parametrize(
    "strategy",
    [
        Weighted({"a": 3, "b": 1, "c": 1}, seed=5),
        RoundRobin(["a", "b", "c"]),
        Frequency([["c", 2], ["a", 1], ["b", 3]]),
    ],
)
def test_a_mixture_resumes_exactly_from_every_position(strategy, kind, on_exhausted):
    check_every_resume(lambda: numbers(strategy, {"a": 5, "b": 2, "c": 3}, on_exhausted, kind), 3)


def sharded(name, count):
    return make([f"skip-{name}-{2 * count}"], seed=count)


def windowed(name, count):
    numbers = [{"number": f"{name}{index}"} for index in range(count)]
    return fkat_data.DataLoader(numbers, None, shuffle=True, seed=count, window_fn=list, window_size=2)


def nested(name, count):
    return DictDataLoader({"n": Numbers(name, count - 1), "m": Numbers("m", 1)}, RoundRobin(["n", "m"]), key="inner")


SOURCES = [Numbers, sharded, windowed, nested]
STRATEGIES = [Weighted({"a": 1, "b": 2}, seed=3), RoundRobin(["a", "b"]), Frequency([["a", 2], ["b", 1]])]


@pytest.mark.parametrize("on_exhausted", ON_EXHAUSTED)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kinds", [*zip(SOURCES, (*SOURCES[1:], Numbers), strict=True)])
def test_behind_an_epochs_last_microbatch_a_mixture_is_at_the_start_of_the_next(kinds, strategy, on_exhausted):
    def made():
        sources = {name: kind(name, count) for name, kind, count in zip("ab", kinds, (3, 4), strict=True)}
        return DictDataLoader(sources, strategy, on_exhausted=on_exhausted)

    first, second = epoch(whole := made()), epoch(whole)
    loader, found = made(), []
    iterator = iter(loader)
    for step in range(len(first)):
        assert (loader.epoch, loader.step) == (0, step)
        found.append(plain(next(iterator)))
    assert found == first
    assert (loader.epoch, loader.step) == (1, 0)
    resumed = made()
    resumed.load_state_dict(loader.state_dict())
    assert (resumed.epoch, resumed.step) == (1, 0)
    assert epoch(resumed) == second
    assert list(iterator) == []
    assert (loader.epoch, loader.step) == (1, 0)
    assert epoch(loader) == second


def test_a_loop_over_the_epochs_that_are_left_trains_none_twice():
    counts = {"a": 3, "b": 2}
    loader = numbers(RoundRobin(["a", "b"]), counts)
    for _ in islice(loader, 5):
        state = loader.state_dict()
    state = loader.state_dict()
    resumed = numbers(RoundRobin(["a", "b"]), counts)
    resumed.load_state_dict(state)
    assert [(number, shown(resumed)) for number in range(resumed.epoch, 2)] == [(1, ["a0", "b0", "a1", "b1", "a2"])]


class Longer(Numbers):
    """Has one microbatch more than it says, or an error there."""

    def __init__(self, name, count, error=None):
        super().__init__(name, count)
        self.error = error

    def __len__(self):
        return len(self.microbatches) - 1

    def __iter__(self):
        yield from self.microbatches[:-1]
        if self.error is not None:
            raise self.error
        yield self.microbatches[-1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_source_that_is_longer_than_it_says_loses_nothing(strategy):
    def made(kind):
        return DictDataLoader({"a": kind("a", 3), "b": kind("b", 4)}, strategy)

    for _, state in check_every_resume(lambda: made(Longer), 2):
        assert state["epoch"] < 2
    assert shown(made(Longer)) == shown(made(Numbers))


def test_an_error_behind_the_length_that_a_source_says_comes_in_its_turn():
    loader = DictDataLoader({"a": Longer("a", 3, OSError("torn"))}, RoundRobin(["a"]))
    iterator = iter(loader)
    assert [next(iterator)["number"] for _ in range(2)] == ["a0", "a1"]
    assert (loader.epoch, loader.step) == (0, 2)
    with pytest.raises(OSError, match="torn"):
        next(iterator)


@pytest.mark.parametrize("on_exhausted", ON_EXHAUSTED)
@pytest.mark.parametrize("kind", [*SOURCES, Remembering])
def test_an_epoch_that_is_ended_is_over_at_once_and_its_state_says_so(kind, on_exhausted):
    def made():
        return DictDataLoader({"a": kind("a", 4), "b": kind("b", 3)}, RoundRobin(["a", "b"]), on_exhausted=on_exhausted)

    for is_loaded in (False, True):
        loader = made()
        for _ in islice(loader, 3):
            pass
        if is_loaded:
            state, loader = loader.state_dict(), made()
            loader.load_state_dict(state)
        for _ in range(2):  # the second has nothing to end
            loader.end_epoch()
            assert (loader.epoch, loader.step, loader.delivered) == (1, 0, {"a": 0, "b": 0})
        if kind is not Remembering:  # its state moves on with its iteration alone
            resumed = made()
            resumed.load_state_dict(loader.state_dict())
            assert (resumed.epoch, resumed.step) == (1, 0)
            assert epoch(resumed) == epoch(loader)


shards = st.lists(
    st.tuples(st.sampled_from(["map", "stream", "list", "generator", "skip"]), st.integers(0, 3)),
    min_size=1,
    max_size=4,
).filter(lambda shards: any(count for _, count in shards))


@pytest.mark.long
@settings(max_examples=30)
@given(
    sources=st.lists(shards, min_size=2, max_size=2),
    strategy=st.sampled_from(
        [RoundRobin(["a", "b"]), Weighted({"a": 1, "b": 2}, 3), Frequency([["a", 3], ["b", 1], ["a", 1]])]
    ),
    on_exhausted=st.sampled_from(ON_EXHAUSTED),
)
def test_a_mixture_of_sharded_loaders_resumes_exactly_from_every_position(sources, strategy, on_exhausted):
    # Shards may be empty, at the end too: the loader then cannot know that its epoch is over.
    def made():
        loaders = {
            name: make([f"{kind}-{name}{place}-{count}" for place, (kind, count) in enumerate(shards)], seed=seed)
            for seed, (name, shards) in enumerate(zip("ab", sources, strict=True))
        }
        return DictDataLoader(loaders, strategy, key=None, on_exhausted=on_exhausted)

    check_every_resume(made, 2)


@pytest.mark.usefixtures("processes", "nothing_left_behind")
def test_a_mixture_of_loaders_with_workers_resumes_exactly_and_closes():
    def made():
        loaders = {
            name: make([f"map-{name}-6", f"stream-{name}-3"], multiprocessing=True, num_shard_prefetches=1, seed=seed)
            for seed, name in enumerate("ab")
        }
        return DictDataLoader(loaders, Weighted({"a": 1, "b": 2}, seed=4), key=None)

    with made() as loader:
        states, microbatches = [], []
        for microbatch in loader:
            microbatches.append(plain(microbatch))
            states.append(loader.state_dict())
    assert len(microbatches) == 2 * (3 + 2)
    with made() as loader:
        for position in (1, 4, 8):
            loader.load_state_dict(states[position])
            assert [plain(microbatch) for microbatch in loader] == microbatches[position + 1 :]
    del loader, microbatch
    gc.collect()


def test_a_torch_dataloader_is_a_source():
    def made():
        loaders = {
            name: DataLoader([{"x": start + index} for index in range(5)], 2) for name, start in (("a", 0), ("b", 10))
        }
        return DictDataLoader(loaders, RoundRobin(["b", "a"]))

    run = check_every_resume(made, 1)
    assert [microbatch["x"] for microbatch, _ in run] == [[10, 11], [0, 1], [12, 13], [2, 3], [14], [4]]


def test_weights_can_be_changed_in_the_middle_and_nothing_is_lost(caplog):
    counts = {"a": 50, "b": 50}
    loader = numbers(Weighted({"a": 9, "b": 1}), counts)
    before = [microbatch["number"] for microbatch in islice(loader, 40)]
    changed = numbers(Weighted({"a": 1, "b": 9}), counts)
    with caplog.at_level(logging.WARNING):
        changed.load_state_dict(loader.state_dict())
    assert "Weighted({'a': 1.0, 'b': 9.0}, seed=0)" in caplog.text
    after = shown(changed)
    assert sorted(before + after) == sorted(shown(Numbers("a", 50)) + shown(Numbers("b", 50)))
    assert Counter(number[0] for number in after[:40])["b"] > 25


def test_a_newer_iterator_a_loaded_state_and_close_end_an_older_one():
    loader = numbers(RoundRobin(["a"]), {"a": 5})
    for end in (lambda: iter(loader), lambda: loader.load_state_dict(loader.state_dict()), loader.close):
        iterator = iter(loader)
        next(iterator)
        end()
        with pytest.raises(StaleIteratorError):
            next(iterator)


class FailsOnce(Numbers):
    """A loader whose second microbatch fails when it is first asked for."""

    def __iter__(self):
        return FailsOnceIterator(iter(self.microbatches[:1]), iter(self.microbatches[1:]))


class FailsOnceIterator:
    def __init__(self, before, after):
        self.before, self.after, self.has_failed = before, after, False

    def __iter__(self):
        return self

    def __next__(self):
        found = next(self.before, None)
        if found is None and not self.has_failed:
            self.has_failed = True
            raise OSError("not yet")
        return found or next(self.after)


def test_a_sources_error_leaves_the_position_as_it_was():
    loader = DictDataLoader({"a": FailsOnce("a", 3), "b": Numbers("b", 2)}, RoundRobin(["a", "b"]))
    iterator = iter(loader)
    assert [next(iterator)["number"] for _ in range(2)] == ["a0", "b0"]
    before = loader.state_dict()
    with pytest.raises(OSError, match="not yet"):
        next(iterator)
    assert loader.state_dict() == before
    assert [microbatch["number"] for microbatch in iterator] == ["a1", "b1", "a2"]


def test_the_length_is_known_where_the_sources_say_theirs():
    with pytest.raises(TypeError):
        len(DictDataLoader({"a": make(["stream-a-3"])}, RoundRobin(["a"])))
    with pytest.raises(TypeError, match="on_exhausted='stop'"):
        len(numbers(RoundRobin(["a"]), {"a": 5}, "stop"))
    assert bool(numbers(RoundRobin(["a"]), {"a": 0}))


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("dataloaders", {"dataloaders": {}}),
        (r"dataloaders\['a'\]", {"dataloaders": {"a": iter([1])}}),
        ("strategy", {"strategy": RoundRobin(["a", "b"])}),
    ],
)
def test_a_wrong_argument_is_named(argument, given):
    with pytest.raises(ConfigurationError, match=argument):
        DictDataLoader(**{"dataloaders": {"a": [1]}, "strategy": RoundRobin(["a"]), **given})


@pytest.mark.parametrize("microbatches", [[torch.ones(2)], [{"dataset": 1}]])
def test_a_microbatch_that_cannot_be_labelled_is_named(microbatches):
    with pytest.raises(ConfigurationError, match="key = 'dataset'"):
        next(iter(DictDataLoader({"a": microbatches}, RoundRobin(["a"]))))


def mixture_of_two():
    return DictDataLoader({"a": make(["map-a-4"]), "b": Numbers("b", 3)}, RoundRobin(["a", "b"]), key=None)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("version", lambda state: state.pop("version")),
        ("draw", lambda state: state.pop("draw")),
        ("left", lambda state: state.update(left=["z"])),
        ("exhausted", lambda state: state.update(exhausted="a")),
        ("sources", lambda state: state.pop("sources")),
        ("sources", lambda state: state["sources"].pop("b")),
        ("sources", lambda state: state["sources"].update(c={})),
        ("a", lambda state: state["sources"].update(a=None)),
        ("taken", lambda state: state["sources"]["a"].pop("taken")),
        ("state", lambda state: state["sources"]["b"].update(state={})),
        ("state", lambda state: state["sources"]["a"].update(state=None)),
        ("seed", lambda state: state["sources"]["a"].update(state=make(["map-a-4"], seed=8).state_dict())),
    ],
)
def test_a_state_of_something_else_is_refused_by_field(field, change):
    state = mixture_of_two().state_dict()
    change(state)
    with pytest.raises(StateMismatchError, match=field):
        mixture_of_two().load_state_dict(state)


def test_statistics_are_those_of_the_sources_together_and_say_how_often_each_was_seen():
    loader = mixture_of_two()
    list(loader)
    first = loader.statistics()
    list(loader)
    statistics = loader.statistics()
    assert statistics.delivered == 2 * (2 + 3)
    assert statistics.waited_s > 0
    assert statistics.since(first).seen == first.seen == {"a": (2, 1), "b": (3, 1)}
    again = DictDataLoader({"a": range(4), "b": range(10)}, RoundRobin(["a", "b"]), key=None, on_exhausted="restart")
    list(again)
    assert again.statistics().seen == {"a": (11, 3), "b": (10, 1)}
    assert "begun 3 times" in str(again.statistics())


@pytest.mark.parametrize("on_exhausted", ON_EXHAUSTED)
@pytest.mark.parametrize("kind", [Numbers, lambda name, count: make([f"skip-{name}-{count}", "skip-z-1"])])
def test_an_epoch_that_is_ended_after_a_load_is_one_that_was_left(on_exhausted, kind):
    def made():
        return DictDataLoader({"a": kind("a", 4), "b": kind("b", 2)}, RoundRobin(["a", "b"]), on_exhausted=on_exhausted)

    for count in range(len(epoch(made()))):
        left, loaded = made(), made()
        list(islice(left, count))
        state = left.state_dict()
        assert same_state(loaded.merge_state_dicts([left.local_state_dict()]), state)
        loaded.load_state_dict(state)
        loaded.end_epoch()
        assert epoch(loaded) == epoch(left)
        assert loaded.epoch == left.epoch == min(count, 1) + 1


def test_a_state_that_a_source_refuses_does_not_stay():
    class Choosy(Remembering):
        def load_state_dict(self, state_dict):
            super().load_state_dict({name: int(state_dict[name]) for name in ("passes", "index")})

    mixture = DictDataLoader({"a": Choosy("a", 5)}, RoundRobin(["a"]), key=None)
    state = mixture.state_dict()
    state["sources"]["a"]["state"] = {"passes": "many", "index": 0}
    with pytest.raises(ValueError, match="many"):
        mixture.load_state_dict(state)
    state["sources"]["a"]["state"] = {"passes": 0, "index": 3}
    mixture.load_state_dict(state)
    assert [microbatch["number"] for _, microbatch in mixture] == ["a0.3", "a0.4"]


def test_one_loader_is_not_two_sources():
    loader = make(["a"])
    with pytest.raises(ConfigurationError, match=r"dataloaders\['b'\] = .*a loader of its own"):
        DictDataLoader({"a": loader, "b": loader}, RoundRobin(["a", "b"]))


@pytest.mark.parametrize("leave", [lambda mixture: None, DictDataLoader.end_epoch], ids=["break", "end_epoch"])
def test_after_an_epoch_that_is_left_a_loaded_source_begins_again_though_nothing_of_it_had_come(leave):
    def mixture():
        sources = {"a": torch.arange(4).tolist(), "b": torch.arange(10, 16).tolist()}
        loaders = {name: fkat_data.DataLoader(numbers, 1, collate_fn=list) for name, numbers in sources.items()}
        return DictDataLoader(loaders, RoundRobin(["a", "b"]), key=None)

    whole = mixture()
    epochs = [list(whole) for _ in range(2)]
    first, second = mixture(), mixture()
    list(islice(first, 2))
    second.load_state_dict(first.state_dict())
    assert next(iter(second)) == ("a", [1])
    leave(second)
    assert list(second) == epochs[1]


def mixture_of(on_exhausted, counts=(5, 2, 0)):
    def of(name, count):
        if name == "s1":  # with an empty shard behind the last microbatch
            return make([f"list-x-{count}", "list-y-0"])
        return fkat_data.DataLoader(range(count), 1, shuffle=count > 0, seed=3, collate_fn=list)

    sources = {f"s{place}": of(f"s{place}", count) for place, count in enumerate(counts)}
    return DictDataLoader(sources, RoundRobin(list(sources)), None, on_exhausted=on_exhausted)


def labelled(microbatch):
    name, inner = microbatch
    return name, plain(inner)


@pytest.mark.parametrize("on_exhausted", ON_EXHAUSTED)
def test_a_microbatch_that_is_taken_back_comes_again(on_exhausted):
    undisturbed = mixture_of(on_exhausted)
    epochs = [list(map(labelled, undisturbed)) for _ in range(3)]
    for cut in range(1, len(epochs[0]) + 1):
        mixture, resumed = mixture_of(on_exhausted), mixture_of(on_exhausted)
        iterator = iter(mixture)
        found = [labelled(next(iterator)) for _ in range(cut - 1)]
        place = mixture.epoch, mixture.step, mixture.delivered, mixture.statistics().seen
        lost = labelled(next(iterator))
        assert mixture.take_back()
        assert not mixture.take_back()
        assert (mixture.epoch, mixture.step, mixture.delivered, mixture.statistics().seen) == place
        resumed.load_state_dict(copy.deepcopy(mixture.state_dict()))
        assert list(map(labelled, resumed)) == epochs[0][cut - 1 :]
        if cut == 1:
            iterator = iter(mixture)  # the same epoch
        rest = list(map(labelled, iterator))
        assert rest[0] == lost
        assert [*found, *rest] == epochs[0]
        for each in (mixture, resumed):
            assert [list(map(labelled, each)) for _ in range(2)] == epochs[1:]


def test_only_what_was_just_delivered_is_taken_back_and_only_by_a_source_that_can():
    mixture = mixture_of("drop")
    assert not mixture.take_back()
    for change in (iter, DictDataLoader.end_epoch, DictDataLoader.close, list):
        iterator = iter(mixture)
        next(iterator)
        change(mixture)
        assert not mixture.take_back()
    state = mixture.state_dict()
    next(iter(mixture))
    mixture.load_state_dict(state)
    assert not mixture.take_back()
    plain_ones = DictDataLoader({"a": Numbers("a", 3)}, RoundRobin(["a"]))
    iterator = iter(plain_ones)
    assert [next(iterator)["number"], plain_ones.take_back(), next(iterator)["number"]] == ["a0", False, "a1"]
    assert plain_ones.step == 2
    outer = DictDataLoader({"inner": mixture}, RoundRobin(["inner"]), None)
    iterator = iter(outer)
    first = next(iterator)
    assert outer.take_back()
    assert next(iterator) == first


class WithoutTakingBack:
    """A loader of the user's around one of this library's."""

    def __init__(self, loader):
        self.loader = loader

    epoch = property(lambda self: self.loader.epoch)
    step = property(lambda self: self.loader.step)

    def __iter__(self):
        return iter(self.loader)

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state_dict):
        self.loader.load_state_dict(state_dict)


def first_ones(rows):
    return [row for row in rows if row < 2]


def with_an_empty_end(kind, on_exhausted):
    """A mixture whose second source does not know its end: empty shards, or windows without a row, are behind it."""
    second = {
        "shards": lambda: make(["list-x-2", "list-y-0", "list-z-0"]),
        "windows": lambda: fkat_data.DataLoader(range(6), window_fn=first_ones, window_size=2, collate_fn=list),
        "user's": lambda: WithoutTakingBack(make(["list-x-2", "list-y-0"])),
    }[kind]()
    sources = {"s0": fkat_data.DataLoader(range(5), 1, shuffle=True, seed=3, collate_fn=list), "s1": second}
    return DictDataLoader(sources, RoundRobin(list(sources)), None, on_exhausted=on_exhausted)


def go_on(mixture, iterator):
    return iterator


def leave_after_closing(mixture, iterator):
    mixture.close()
    return iter(mixture)


def leave_by_ending(mixture, iterator):
    mixture.end_epoch()
    return iter(mixture)


def leave_for_a_new_loop(mixture, iterator):
    return iter(mixture)


def take_one_back(mixture, iterator):
    mixture.take_back()
    return iterator


@pytest.mark.parametrize("disturb", [go_on, leave_after_closing, leave_by_ending, leave_for_a_new_loop, take_one_back])
def test_a_source_that_was_loaded_where_only_empty_shards_are_left_loses_nothing(disturb, some):
    kinds = ["shards", "windows", *(["user's"] if disturb is not take_one_back else [])]
    cuts = [(3, 1), (3, 2), (4, 1), (4, 2), (4, 3)]
    for kind, on_exhausted, (count, further) in some([*product(kinds, ON_EXHAUSTED, cuts)], 3):
        found = []
        for is_loaded in (False, True):
            mixture, resumed = (with_an_empty_end(kind, on_exhausted) for _ in range(2))
            iterator = iter(mixture)
            for _ in range(count):
                next(iterator)
            if is_loaded:
                mixture.load_state_dict(copy.deepcopy(mixture.state_dict()))
                iterator = iter(mixture)
            begun = [labelled(each) for each in islice(iterator, further)]
            iterator = disturb(mixture, iterator)
            resumed.load_state_dict(copy.deepcopy(mixture.state_dict()))
            place, rest = (mixture.epoch, mixture.step), [*map(labelled, iterator)]
            epochs = [rest] * bool(rest) + [[*map(labelled, mixture)] for _ in range(2)]
            assert [[*map(labelled, resumed)] for _ in epochs] == epochs
            found.append([begun, place, epochs])
        assert found[0] == found[1], (kind, on_exhausted, count, further)


class InterruptedAt:
    """Samples, of which one ends its first call as Ctrl-C does."""

    def __init__(self, index):
        self.index = index

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == self.index:
            self.index = None
            raise KeyboardInterrupt
        return index


def test_a_mixture_that_is_closed_after_an_interruption_can_be_iterated_again():
    for index in range(3):
        sources = {"a": fkat_data.DataLoader(range(3)), "b": fkat_data.DataLoader(InterruptedAt(index))}
        mixture = DictDataLoader(sources, RoundRobin(["a", "b"]), None)
        with pytest.raises(KeyboardInterrupt):
            list(mixture)
        step = mixture.step
        mixture.close()
        assert mixture.step == step
        assert list(map(labelled, mixture)) == [(name, [number]) for number in range(3) for name in "ab"]


def pickled(mixture):
    return pickle.loads(pickle.dumps(mixture))


def shuffled(name, count):
    samples = [{"number": f"{name}{index}"} for index in range(count)]
    return fkat_data.DataLoader(samples, None, shuffle=True, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("copied_by", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_mixture_goes_on_at_its_position_and_leaves_the_mixture_as_it_is(copied_by, some):
    kinds = [Numbers, InPlace, windowed, nested, shuffled]
    for kind, on_exhausted, count in some(product(kinds, ON_EXHAUSTED, range(9)), 6):
        mixture, undisturbed = (numbers(RoundRobin(["a", "b"]), {"a": 4, "b": 2}, on_exhausted, kind) for _ in range(2))
        state = undisturbed.state_dict()  # which draws a seed where none is given
        mixture.load_state_dict(copy.deepcopy(state))
        expected = list(map(plain, chain.from_iterable(undisturbed for _ in range(3))))
        loops = chain.from_iterable(mixture for _ in range(3))
        found = list(map(plain, islice(loops, count)))
        copied = copied_by(mixture)
        assert (copied.epoch, copied.step, copied.delivered) == (mixture.epoch, mixture.step, mixture.delivered)
        assert repr(copied) == repr(mixture)
        if copied_by is not copy.copy or kind is not InPlace:  # whose state a shallow copy shares
            found_there = list(map(plain, chain.from_iterable(copied for _ in range(3))))
            assert found_there[: len(expected) - count] == expected[count:], (kind, on_exhausted, count)
        assert found + list(map(plain, loops)) == expected, (kind, on_exhausted, count)


def test_a_mixture_of_loaders_that_own_processes_says_that_it_cannot_be_copied():
    mixture = DictDataLoader({"a": sharded("a", 3)}, RoundRobin(["a"]), None)
    for copied_by in (copy.copy, copy.deepcopy, pickled):
        with pytest.raises(TypeError, match="a ShardedDataLoader cannot be pickled or copied"):
            copied_by(mixture)
    assert len(list(mixture)) == 6
