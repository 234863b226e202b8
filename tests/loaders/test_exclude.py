"""What a step was made of, without reading; and samples and steps that are left out from a position on.

Models are plain lists: an order, and what is left of it without what was left out.
"""

import copy
import json
import re
from itertools import chain, islice
from random import Random

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from streaming_examples import worlds, write
from torch.utils.data import DistributedSampler, IterableDataset
from walks import begun, saved

from fkat_data import ConfigurationError, DataLoader, RankMismatchError, ShardedDataLoader, StateMismatchError
from fkat_data.datasets import JsonDataset, PackedDataset
from fkat_data.mixing import DictDataLoader, RoundRobin
from fkat_data.streaming import StreamingDataLoader, StreamingDataset


def made(num_samples, size, num_ranks, rank, **options):
    loader = DataLoader(range(num_samples), size, seed=7, collate_fn=list, **options)
    loader.deal_out(num_ranks, rank)
    return loader


def ids_of(loader, step, epoch=None):
    return [record.sample_id for record in loader.samples_of(step, epoch)]


def steps_to_come(loader):
    """Each step of the epoch from the next one on: its samples on each rank."""
    found, step = [], loader.step
    while True:
        try:
            records = loader.samples_of(step, loader.epoch)
        except ConfigurationError:
            return found
        found.append(
            {rank: [each.sample_id for each in records if each.rank == rank] for rank in {r.rank for r in records}}
        )
        step += 1


def together(iterators, count):
    """What all ranks get in the next steps: of each step, the samples of each rank."""
    return [list(step) for step in zip(*(islice(iterator, count) for iterator in iterators), strict=True)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_was_prefetched_is_made_again_and_microbatches_stay_full(shuffle):
    loader = DataLoader(range(30), 4, shuffle=shuffle, seed=3, collate_fn=list)
    iterator = iter(loader)
    had = [next(iterator), next(iterator)]
    order = [*chain.from_iterable(ids_of(loader, step) for step in range(8))]
    assert order[:8] == had[0] + had[1]
    out = [order[3], order[9], order[10], order[29]]
    loader.exclude(out)
    left = [sample for sample in order[8:] if sample not in out]
    assert list(iterator) == [left[first : first + 4] for first in range(0, 19, 4)]
    assert [ids_of(loader, step, 0) for step in (0, 1)] == had
    following = [*chain.from_iterable(loader)]
    assert sorted(following) == sorted({*range(30)} - {*out})


def test_steps_are_left_out_of_the_epoch_alone_and_later_ones_move_up():
    loader = DataLoader(range(20), 2, collate_fn=list)
    iterator = iter(loader)
    next(iterator)
    loader.exclude_steps(3, 5)
    assert [*chain.from_iterable(iterator)] == [*range(2, 6), *range(12, 20)]
    assert [*chain.from_iterable(loader)] == [*range(20)]
    assert [ids_of(loader, step, 0) for step in (2, 3)] == [[4, 5], [12, 13]]
    assert ids_of(loader, 7) == [0, 1]  # seven steps of epoch 0, and then the next one


class Plain:
    """An epoch as a plain list, dealt out in rounds."""

    def __init__(self, order, size, *, drop_last):
        self.left, self.whole, self.size, self.drop_last = [*order], [*order], size, drop_last

    def steps(self, num_ranks):
        """What is left: of each step, the samples of each rank."""
        found, round_size = [], num_ranks * self.size
        for first in range(0, len(self.left), round_size):
            samples = self.left[first : first + round_size]
            if len(samples) < round_size and self.drop_last:
                break
            if num_ranks > 1:
                samples += (self.whole * round_size)[: round_size - len(samples)]
            found.append([samples[at : at + self.size] for at in range(0, len(samples), self.size)])
        return found

    def deliver(self, num_ranks, count):
        steps = self.steps(num_ranks)[:count]
        self.left = self.left[len(steps) * num_ranks * self.size :]
        return steps

    def exclude(self, samples):
        self.left, self.whole = ([each for each in kept if each not in samples] for kept in (self.left, self.whole))

    def exclude_steps(self, num_ranks, first, last):
        self.exclude({*self.left[first * num_ranks * self.size : (last + 1) * num_ranks * self.size]})


LEGS = st.tuples(st.integers(1, 4), st.integers(0, 3), st.sampled_from(["samples", "steps", "none"]), st.integers(0, 2))


@settings(deadline=None)
@given(
    st.lists(LEGS, min_size=1, max_size=4),
    *(st.integers(20, 90), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 99)),
)
def test_an_epoch_on_any_ranks_is_that_of_a_plain_list(  # noqa: C901 - a walk
    trip, num_samples, size, shuffle, drop_last, seed
):
    options, random, out = {"shuffle": shuffle, "drop_last": drop_last}, Random(seed), set()
    order = [sample for (sample,) in DataLoader(range(num_samples), 1, seed=7, shuffle=shuffle, collate_fn=list)]
    plain, state = Plain(order, size, drop_last=drop_last), None

    def opened(num_ranks):
        ranks = [made(num_samples, size, num_ranks, rank, **options) for rank in range(num_ranks)]
        for loader in ranks if state is not None else ():
            loader.load_state_dict(state)
        return ranks

    for num_ranks, before, kind, behind in trip:
        ranks = opened(num_ranks)
        if ranks[0].epoch:
            break
        iterators = [iter(loader) for loader in ranks]
        assert together(iterators, before) == plain.deliver(num_ranks, before)
        if ranks[0].epoch:
            state = saved(ranks)
            break
        chosen = random.sample(range(num_samples), random.randint(1, num_samples // 4))
        first, count = random.randint(0, 4), random.randint(0, 2)
        if kind == "samples":
            for loader in ranks:
                loader.exclude(chosen)
            plain.exclude(chosen)
            out |= {*chosen}
        elif kind == "steps":
            for loader in ranks:
                loader.exclude_steps(loader.step + first, loader.step + first + count)
            plain.exclude_steps(num_ranks, first, first + count)
        state = saved(ranks)
        for loader in (*ranks, *opened(num_ranks)):
            to_come = (
                [] if loader.epoch else steps_to_come(loader)
            )  # where nothing is left, a load begins the next epoch
            assert [[*step.values()] for step in to_come] == plain.steps(num_ranks)
        step, expected = ranks[0].step, plain.deliver(num_ranks, behind)
        assert together(iterators, behind) == expected
        assert [ids_of(ranks[0], step + at, 0) for at in range(len(expected))] == [[*chain(*each)] for each in expected]
        state = saved(ranks)
    num_ranks = trip[0][0]
    ranks = opened(num_ranks)
    if not ranks[0].epoch:
        assert together([iter(loader) for loader in ranks], None) == plain.steps(num_ranks)
    following = {sample for loader in ranks for batch in loader for sample in batch}
    assert following <= {*range(num_samples)} - out
    assert drop_last or following == {*range(num_samples)} - out


def test_nothing_that_was_left_out_fills_up_the_last_round():
    ranks = [made(9, 2, 2, rank) for rank in range(2)]
    for loader in ranks:
        loader.exclude([0, 1])
    assert together([iter(loader) for loader in ranks], None) == [[[2, 3], [4, 5]], [[6, 7], [8, 2]]]


def as_list(samples):
    return samples if isinstance(samples, list) else [samples]


def distributed(num_ranks, num_samples, size, shuffle, drop_last):
    """Loaders of ranks with torch's sampler; ``drop_last`` is the sampler's and the loader's."""
    found = []
    for rank in range(num_ranks):
        order = DistributedSampler(range(num_samples), num_ranks, rank, shuffle=shuffle, seed=4, drop_last=drop_last[0])
        last = {} if size is None else {"drop_last": drop_last[1]}
        found.append(DataLoader(range(num_samples), size, sampler=order, seed=7, collate_fn=as_list, **last))
    return found


def check_steps(loader, first, steps, epoch):
    """Check what a loader says of an epoch's steps from one on, each with what every rank gets."""
    for step, expected in enumerate(steps, first):
        records = loader.samples_of(step, epoch)
        of_ranks = [[each.sample_id for each in records if each.rank == rank] for rank in range(len(expected))]
        assert of_ranks == [*expected]
        assert len(records) == sum(map(len, expected))


DISTRIBUTED = {
    "num_samples": st.integers(1, 23),
    "size": st.sampled_from([None, 1, 3]),
    "shuffle": st.booleans(),
    "drop_last": st.tuples(st.booleans(), st.booleans()),
}


@settings(max_examples=60)
@given(st.integers(1, 3), st.fixed_dictionaries(DISTRIBUTED))
def test_a_step_of_a_distributed_sampler_is_what_each_rank_gets(num_ranks, order):
    loaders = distributed(num_ranks, **order)
    for epoch in range(2):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        steps = [*zip(*loaders, strict=True)]
        fresh = distributed(num_ranks, **order)[0]
        check_steps(fresh, 0, steps, epoch)
        with pytest.raises(ConfigurationError, match=f"step = {len(steps)}"):
            fresh.samples_of(len(steps), epoch)


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.fixed_dictionaries(DISTRIBUTED))
def test_a_step_of_a_distributed_sampler_is_known_before_and_behind_a_change_of_ranks(
    num_ranks, others, num_steps, order
):
    loaders = distributed(num_ranks, **order)
    had = together([iter(loader) for loader in loaders], num_steps)
    if loaders[0].epoch or len(had) < num_steps:
        return  # the epoch is over
    state, loaders = saved(loaders), distributed(others, **order)
    rest = []
    for _ in range(2):  # the second time, to ask where it begins
        for loader in loaders:
            loader.load_state_dict(state)
        rest = rest or [*zip(*loaders, strict=True)]
    check_steps(loaders[0], 0, had, 0)
    check_steps(loaders[0], num_steps, rest, 0)


@pytest.mark.parametrize("cut", [0, 1, 5, 9])
def test_a_source_of_a_mixture_leaves_samples_out_and_the_state_of_the_mixture_has_them(cut):
    def mixed():
        sources = {
            name: DataLoader(range(first, first + 20), 2, shuffle=True, seed=1, collate_fn=list)
            for name, first in (("a", 0), ("b", 100))
        }
        return DictDataLoader(sources, RoundRobin(["a", "b"]), key=None)

    mixture = mixed()
    iterator = iter(mixture)
    had = [next(iterator) for _ in range(cut)]
    source = mixture.dataloaders["a"]
    order = [*chain.from_iterable(ids_of(source, step, 0) for step in range(10))]
    out = {order[3], order[12], order[17]}
    source.exclude(out)
    state = json.loads(json.dumps(mixture.state_dict()))
    left = [*order[: 2 * len(range(0, cut, 2))]]
    left += [sample for sample in order[len(left) :] if sample not in out]
    rest = [*iterator]
    assert [sample for name, batch in had + rest if name == "a" for sample in batch] == left
    assert sorted(sample for name, batch in had + rest if name == "b" for sample in batch) == [*range(100, 120)]
    following = [*mixture]
    assert sorted(sample for name, batch in following if name == "a" for sample in batch) == sorted({*range(20)} - out)
    other = mixed()
    other.load_state_dict(state)
    assert [*other] == rest
    assert [*other] == following


def test_samples_of_a_large_shuffle_are_found_without_going_through_it():
    loader = DataLoader(range(10**6), 1000, shuffle=True, seed=2, collate_fn=list)
    out = ids_of(loader, 500)[:3] + ids_of(loader, 999)[-2:]
    loader.exclude(out)
    found = [*chain.from_iterable(ids_of(loader, step, 0) for step in range(1000))]
    assert len(found) == 10**6 - 5
    assert {*out} == {*range(10**6)} - {*found}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_random_draws_and_workers_go_on_as_in_a_run_that_resumes(processes, num_workers):
    loader = DataLoader(range(60), 3, shuffle=True, seed=1, collate_fn=list, num_workers=num_workers)
    with loader:
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        loader.exclude(ids_of(loader, 5))
        state = json.loads(json.dumps(loader.state_dict()))
        rest = list(iterator)
    other = DataLoader(range(60), 3, shuffle=True, seed=1, collate_fn=list)
    other.load_state_dict(state)
    assert list(other) == rest


def test_what_was_left_out_cannot_be_taken_back_to_and_provenance_stays():
    loader = DataLoader(range(12), 3, collate_fn=list)
    iterator = iter(loader)
    assert next(iterator) == [0, 1, 2]
    loader.exclude([4])
    assert loader.provenance()[0].samples == [0, 1, 2]
    assert not loader.take_back()
    assert next(iterator) == [3, 5, 6]
    assert loader.take_back()
    assert next(iterator) == [3, 5, 6]
    assert loader.provenance()[0].samples == [3, 5, 6]


def test_all_that_is_left_may_be_left_out():
    loader = DataLoader(range(6), 2, collate_fn=list)
    iterator = iter(loader)
    next(iterator)
    loader.exclude(range(2, 6))
    assert list(iterator) == []
    assert list(loader) == [[0, 1]]


@pytest.mark.parametrize("others", ["Exclusion(samples=(3,), steps=None)", "Exclusion(samples=(), steps=None)"])
def test_what_one_rank_alone_refuses_or_asks_for_is_an_error_of_all(monkeypatch, others):
    loader = made(20, 2, 2, 0)
    next(iter(loader))
    state = loader.local_state_dict()
    monkeypatch.setattr("fkat_data.runtime.distributed.gather", lambda own, call: [own, (*own[:2], others)])
    asked = re.escape(others)
    for call, own in [
        (lambda: loader.exclude([-1]), "samples = -1"),
        (lambda: loader.exclude(7), "samples = 7: expected a list of numbers"),
        (lambda: loader.exclude("17"), "samples = '17': expected a list of numbers"),
        (lambda: loader.exclude([5]), r"samples=\(5,\)"),
        (lambda: loader.exclude_steps(0, 4), "first = 0: expected at least 1"),
        (lambda: loader.exclude_steps(4, 3), "last = 3"),
    ]:
        with pytest.raises(RankMismatchError, match=f"{own}.* on rank 0; .*{asked} on rank 1"):
            call()
        assert loader.local_state_dict() == state
    monkeypatch.setattr("fkat_data.runtime.distributed.gather", lambda own, call: [own, own])
    with pytest.raises(ConfigurationError, match="samples = -1"):
        loader.exclude([-1])
    loader.exclude([])
    assert loader.local_state_dict() == state


def test_ranks_that_differ_are_refused(monkeypatch):
    loader = made(20, 2, 2, 0)
    next(iter(loader))
    state = loader.local_state_dict()
    monkeypatch.setattr("fkat_data.runtime.distributed.gather", lambda own, call: [own, (own[0], own[1] + 1, own[2])])
    with pytest.raises(Exception, match=r"exclude\(\).*step 1 of epoch 0.*step 2 of epoch 0"):
        loader.exclude([3])
    assert loader.local_state_dict() == state


def test_what_cannot_be_left_out_is_refused_by_name(tmp_path):
    class Numbers(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    for loader, found in [
        (DataLoader(Numbers(), 2), "an iterable dataset"),
        (DataLoader(range(8), 2, sampler=[3, 1, 2, 0]), "a sampler of the caller's"),
        (DataLoader(range(8), 2, window_fn=list), "windows become rows"),
    ]:
        for call in (lambda loader: loader.exclude([1]), lambda loader: loader.samples_of(0)):
            with pytest.raises(ConfigurationError, match=found):
                call(loader)
    loaders = ShardedDataLoader(1, ["a"], list, multiprocessing=False), DictDataLoader({"a": [1]}, RoundRobin(["a"]))
    for loader, hint in zip(loaders, ("only its dataloader_factory knows", "mixture.dataloaders"), strict=True):
        for call, arguments in (("samples_of", (0,)), ("exclude", ([1],)), ("exclude_steps", (1, 2))):
            with pytest.raises(ConfigurationError, match=f"^{call} = .*{re.escape(hint)}"):
                getattr(loader, call)(*arguments)
    loader = DataLoader(range(8), 2, collate_fn=list)
    with pytest.raises(ConfigurationError, match="indices below 8"):
        loader.exclude([8])
    next(iter(loader))
    with pytest.raises(ConfigurationError, match=r"first = 0.*at least 1"):
        loader.exclude_steps(0, 3)
    with pytest.raises(ConfigurationError, match="step = 4"):
        loader.samples_of(4, 0)


STREAM = {"shuffle": True, "shuffle_algo": "block", "num_canonical_nodes": 2}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write(tmp_path_factory.mktemp("stream") / "data", 90, columns=("number",))


def stream_ranks(directory, num_nodes, ranks_per_node, size, **options):
    return [
        StreamingDataLoader(StreamingDataset(local=directory, world=each, **{**STREAM, **options}), size)
        for each in worlds(num_nodes, ranks_per_node)
    ]


def read(iterators, count):
    return [[batch["number"].tolist() for batch in step] for step in together(iterators, count)]


class Legs:
    """What ranks of one world after the other deliver of an epoch, against what they would without anything left out."""

    def __init__(self, directory, algorithm):
        self.directory, self.algorithm = directory, algorithm
        self.had, self.out, self.dropped, self.lost = [], set(), set(), set()

    def ranks(self, shape, size, state):
        ranks = stream_ranks(self.directory, *shape, size, shuffle_algo=self.algorithm)
        for loader in ranks if state is not None else ():
            loader.load_state_dict(state)
        return ranks

    def deliver(self, ranks, iterators, shape, size, count):
        """Check and keep what comes; a step in which a rank would have nothing comes on none."""
        to_come = steps_to_come(ranks[0])
        state = json.loads(json.dumps(ranks[0].state_dict()))
        plain = self.ranks(shape, size, {**state, "skip": ()})[0]
        found = read(iterators, count)
        assert found == [[each[rank] for rank in range(len(ranks))] for each in to_come[:count]]
        expected, is_whole = iter(steps_to_come(plain) if not plain.epoch else []), count is None
        for step in found:
            for whole in expected:
                kept = [[sample for sample in own if sample not in self.out | self.dropped] for own in whole.values()]
                if all(kept):
                    assert step == kept
                    break
                self.lost |= {*chain.from_iterable(whole.values())}
        if is_whole:
            self.lost |= {sample for whole in expected for own in whole.values() for sample in own}
        self.had += [sample for step in found for own in step for sample in own]
        return state


@settings(deadline=None, max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),
            *(st.integers(1, 3), st.integers(0, 4), st.integers(0, 3), st.sampled_from(["samples", "steps", "none"])),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["block", "py1e"]),
    st.integers(0, 99),
)
def test_a_stream_leaves_out_what_was_named_on_any_ranks(directory, trip, algorithm, seed):
    state, legs, random = None, Legs(directory, algorithm), Random(seed)
    for shape, size, before, behind, kind in trip:
        ranks = legs.ranks(shape, size, state)
        if ranks[0].epoch:
            break
        iterators = [iter(loader) for loader in ranks]
        legs.deliver(ranks, iterators, shape, size, before)
        if ranks[0].epoch:
            break
        to_come, at = steps_to_come(ranks[0]), ranks[0].step
        if kind == "samples":
            chosen = random.sample(range(90), random.randint(1, 12))
            legs.out |= {*chosen}
            for loader in ranks:
                loader.exclude(chosen)
        # At an epoch's end, the reference repeats samples, those of steps that were left out, too.
        if kind == "steps" and to_come and algorithm == "block":
            first = at + random.randrange(len(to_come))
            last = first + random.randint(0, 2)
            for step in to_come[first - at : last + 1 - at]:
                legs.dropped |= {sample for own in step.values() for sample in own}
            for loader in ranks:
                loader.exclude_steps(first, last)
        again = legs.ranks(shape, size, json.loads(json.dumps(ranks[0].state_dict())))
        assert again[0].epoch or steps_to_come(again[0]) == steps_to_come(ranks[0])
        legs.deliver(ranks, iterators, shape, size, behind)
        state = json.loads(json.dumps(ranks[0].state_dict()))
    ranks = legs.ranks((1, 1), 2, state)
    if not ranks[0].epoch:
        legs.deliver(ranks, [iter(loader) for loader in ranks], (1, 1), 2, None)
    assert {*legs.had} | legs.out | legs.dropped | legs.lost == {*range(90)}
    following = {sample for step in read([iter(loader) for loader in ranks], None) for own in step for sample in own}
    assert following - legs.out == following
    assert len(following) >= 90 - 2 * len(legs.out)


def test_a_stream_under_way_goes_on_without_what_was_fetched_ahead(directory):
    (loader,) = stream_ranks(directory, 1, 1, 4)
    iterator = iter(loader)
    had = read([iterator], 3)
    ahead = ids_of(loader, 3)
    loader.exclude(ahead[:2])
    assert loader.samples_of(2)[0].shard.endswith(".mds")
    assert loader.provenance()[0].samples == had[2][0]
    assert read([iterator], 1) == [[ahead[2:]]]
    assert loader.num_samples_yielded == 14
    rest = ids_of(loader, 5)
    loader.exclude_steps(4, 4)
    assert read([iterator], 1) == [[rest]]
    assert [ids_of(loader, step, 0) for step in range(3)] == [own for (own,) in had]
    assert loader.state_dict()["skip"] == (
        {"epoch": 0, "span": [16, 20]},
        {"samples": sorted(ahead[:2]), "from": [0, 12]},
    )


def test_a_map_style_dataset_says_the_file_and_row(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(f"{number}\n" for number in range(4)))
    record = DataLoader(JsonDataset([str(tmp_path / "a.jsonl")]), 2).samples_of(1)[0]
    assert (record.rank, record.sample_id, record.row) == (0, 2, 2)
    assert "a.jsonl" in record.shard


def packed(rank, world_size):
    lengths = [1 + index * 7 % 13 for index in range(60)]
    documents = [torch.full((length,), index) for index, length in enumerate(lengths)]
    dataset = PackedDataset(documents, 16, 20, lengths=lengths, seed=1, rank=rank, world_size=world_size)
    return DataLoader(dataset, batch_size=2, collate_fn=lambda rows: [row["tokens"].tolist() for row in rows])


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_packed_sequences_are_left_out_by_steps_alone(num_ranks):
    whole = [list(packed(rank, num_ranks)) for rank in range(num_ranks)]
    ranks = [packed(rank, num_ranks) for rank in range(num_ranks)]
    iterators = [begun(loader, 2) for loader in ranks]
    for loader in ranks:
        loader.exclude_steps(3, 4)
        with pytest.raises(ConfigurationError, match=r"exclude_steps\(\): it packs others"):
            loader.exclude([1])
    state = saved(ranks)
    again = [packed(rank, num_ranks) for rank in range(num_ranks)]
    for loader in again:
        loader.load_state_dict(state)
    expected = [own[2:3] + own[5:] for own in whole]
    assert [list(iterator) for iterator in iterators] == [list(loader) for loader in again] == expected
    with pytest.raises(StateMismatchError, match="finish the epoch"):
        packed(0, 3).load_state_dict(state)
    following = packed(0, 3)
    following.load_state_dict(saved(ranks))
    assert (following.epoch, following.step) == (1, 0)


def test_a_copy_and_a_loader_that_is_dealt_out_later_leave_out_the_same():
    ranks = [DataLoader(range(20), 2, collate_fn=list) for _ in range(2)]
    for rank, loader in enumerate(ranks):
        loader.exclude([0, 5])
        loader.deal_out(2, rank)
    assert sorted(chain(*chain(*map(list, ranks)))) == sorted([1, 2, *({*range(20)} - {0, 5})])
    loader = DataLoader(range(20), 2, shuffle=True, seed=1, collate_fn=list)
    iterator = begun(loader, 2)
    loader.exclude([3, 4])
    rest = list(iterator)
    loader.set_epoch(5)
    assert {sample for batch in loader for sample in batch} == {*range(20)} - {3, 4}
    assert list(copy.copy(loader)) != rest


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "workers": "threads"}], ids=str)
def test_workers_of_a_stream_leave_out_the_same(processes, directory, options):
    def delivered(**options):
        loader = StreamingDataLoader(StreamingDataset(local=directory, **STREAM), 4, **options)
        with loader:
            iterator = begun(loader, 5)
            loader.exclude([1, 2, 3, 40, 50])
            found = read([iterator], 2)
            loader.exclude_steps(8, 10)
            return found + read([iterator], None) + read([iter(loader)], None)

    assert delivered(**options) == delivered()


def test_what_was_not_committed_comes_again_as_it_was():
    def opened():
        return DataLoader(range(30), 3, shuffle=True, seed=1, collate_fn=list, commit="manual")

    def committed(loader, iterator):
        for batch in iterator:
            loader.commit(loader.ticket)
            yield batch

    loader = opened()
    iterator = iter(loader)
    first, ticket = next(iterator), loader.ticket
    second = next(committed(loader, iterator))
    out = [first[0], *ids_of(loader, 4)[:1]]
    loader.exclude(out)
    loader.release(ticket)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [*committed(loader, iterator)]
    assert rest[0] == first
    assert sorted(chain(second, *rest)) == sorted({*range(30)} - {out[1]})
    other = opened()
    other.load_state_dict(state)
    assert [*committed(other, iter(other))] == rest
