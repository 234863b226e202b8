"""A sample that raises is left out where the caller says so: microbatches stay full, and nothing else changes."""

import json
import os
import random
import signal
from itertools import chain, islice

import pytest
import torch
from drop_in_examples import Counted
from hypothesis import given
from hypothesis import strategies as st
from own_workers import worker_pids
from streaming_examples import write
from torch.utils.data import DistributedSampler
from walks import at_state, saved

from fkat_data import (
    CacheFullError,
    ConfigurationError,
    DataLoader,
    DownloadError,
    SkippedSamplesError,
    StateMismatchError,
    item_generators,
)
from fkat_data.datasets import JsonDataset
from fkat_data.streaming import StreamingDataLoader, StreamingDataset, World


class Broken(Counted):
    """Numbers, some of which cannot be read."""

    def __init__(self, count, bad):
        super().__init__(count)
        self.bad = frozenset(bad)

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"no {index}")
        return index


class BrokenTogether(Broken):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Drawing(Broken):
    def __getitem__(self, index):
        drawn = random.random() + item_generators().python.random()
        return drawn + super().__getitem__(index)


def make(dataset, size=3, *, ranks=(1, 0), **options):
    given = {"on_sample_error": "skip", "window_size": 4, "seed": 5, "shuffle": True}
    given |= {} if size is None else {"collate_fn": list}
    loader = DataLoader(dataset, size, **given | options)
    loader.deal_out(*ranks)
    return loader


kinds = st.sampled_from([Broken, BrokenTogether])
broken = st.integers(1, 30).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1))))


@given(kinds, broken, st.sampled_from([None, 1, 2, 5]), st.integers(1, 9))
def test_the_others_come_in_the_same_order_in_full_microbatches(kind, shape, size, window_size):
    loader = make(kind(*shape), size, window_size=window_size)
    order = [*chain.from_iterable(DataLoader(range(shape[0]), 7, shuffle=True, seed=5, collate_fn=list))]
    batches = list(loader)
    found = batches if size is None else [*chain.from_iterable(batches)]
    assert found == [number for number in order if number not in shape[1]]
    assert size is None or all(len(batch) == size for batch in batches[:-1])
    assert loader.statistics().skipped_samples == len(shape[1])


@given(kinds | st.just(Drawing), broken, st.sampled_from([1, 2, 5]), st.data())
def test_a_state_at_any_cut_counts_each_sample_that_was_left_out_once(kind, shape, size, data):
    whole = list(make(kind(*shape), size))
    loader, had, num_skipped = make(kind(*shape), size), [], 0
    for cut in sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))):
        had += islice(loader, max(0, cut - len(had)))
        if loader.epoch:
            break
        state = saved([loader])
        num_skipped = state["place"][0]["sampler"]["num_skipped"]
        loader = at_state(make(kind(*shape), size), state)
        assert saved([loader])["place"][0]["sampler"] == state["place"][0]["sampler"]
    if not loader.epoch:
        rest = list(loader)
        if loader.epoch == 1:
            had += rest
            assert num_skipped + loader.statistics().skipped_samples == len(shape[1])
    assert had == whole


def doubled(samples):
    return [(sample, row) for sample in samples for row in (0, 1)]


@given(broken, st.integers(2, 9), st.integers(0, 60), st.integers(1, 3), st.booleans())
def test_a_sample_that_can_be_read_again_after_a_resume_moves_no_row(shape, window_size, cut, num_ranks, is_rows):
    """What was left out of a window that was begun stays so; the windows behind it have all of their samples."""
    num_samples, bad = shape
    options = {"window_size": window_size, **({"window_fn": doubled} if is_rows else {})}
    loader = make(Broken(num_samples, bad), 2, **options)
    had = list(islice(loader, cut))
    state = saved([loader])["place"][0]
    if state["epoch"] or num_ranks > -(-num_samples // window_size):
        return
    rest = []
    for rank in range(num_ranks):
        other = at_state(make(Broken(num_samples, []), 2, ranks=(num_ranks, rank), **options), state)
        iterator = iter(other)
        rest += iterator if other.epoch == 0 else []
    rows = [*chain.from_iterable([*had, *rest])]
    assert len(set(rows)) == len(rows)
    missing = set(range(num_samples)) - {row[0] if is_rows else row for row in rows}
    assert len(rows) == (num_samples - len(missing)) * (1 + is_rows)
    order = [*chain.from_iterable(DataLoader(range(num_samples), 7, shuffle=True, seed=5, collate_fn=list))]
    sampler = state["sampler"]
    begun = order[: (sampler["window"] + (sampler["row"] > 0)) * window_size]
    assert missing == bad & set(begun)
    assert sampler["num_skipped"] == len(missing)


def test_a_sample_that_was_delivered_and_cannot_be_read_again_is_an_error_not_a_row_less():
    loader = make(Broken(40, [1]), 3, shuffle=False, window_size=10)
    list(islice(loader, 2))
    other = at_state(make(Broken(40, [1, 2]), 3, shuffle=False, window_size=10), saved([loader]))
    with pytest.raises(OSError, match=r"no 2(.|\n)*before the resume"):
        list(other)


def test_ranks_count_what_all_had_left_out_before_their_number_changed():
    dataset = Broken(60, range(0, 60, 3))
    loaders = [make(dataset, 2, ranks=(3, rank)) for rank in range(3)]
    had = [list(islice(loader, 4)) for loader in loaders]
    state = saved(loaders)
    before = sum(each["sampler"]["num_skipped"] for each in state["place"][0]["all_rank_states"])
    assert before > 0
    others = [make(dataset, 2, ranks=(2, rank)) for rank in range(2)]
    for loader in others:
        loader.load_state_dict(state)
        assert loader.local_state_dict()["place"][0]["sampler"]["skipped_before"] == before
        had.append(list(loader))
    assert sorted(chain.from_iterable(chain.from_iterable(had))) == [number for number in range(60) if number % 3]
    limited = at_state(make(dataset, 2, max_skipped_samples=before, ranks=(2, 0)), state)
    with pytest.raises(SkippedSamplesError, match=f"{before + 1} samples|{before + 2} samples"):
        list(limited)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_too_many_is_an_error_that_stays_and_names_the_sample(processes, num_workers, caplog):
    with make(Broken(60, [7, 9, 30]), max_skipped_samples=2, shuffle=False, num_workers=num_workers) as loader:
        had, iterator = [], iter(loader)
        for _ in range(2):
            with pytest.raises(SkippedSamplesError, match=r"^3 samples of epoch 0 .* 30: OSError: no 30") as caught:
                had += iterator
        assert (caught.value.num_skipped, caught.value.limit) == (3, 2)
        assert [*chain.from_iterable(had)] == [number for number in range(29) if number not in (7, 9)][: 3 * len(had)]
    assert [record.getMessage().count("is left out") for record in caplog.records].count(1) == 3


def test_killed_workers_and_other_numbers_of_workers_leave_out_the_same(processes):
    dataset = Broken(400, range(3, 400, 7))
    whole = list(make(dataset, 7, window_size=16))
    with make(dataset, 7, window_size=16, num_workers=2, max_worker_restarts=9) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(batch)
            if number in (3, 20, 21):
                os.kill(worker_pids()[-1], signal.SIGKILL)
        assert found == whole
        assert loader.statistics().skipped_samples == len(range(3, 400, 7))


def test_functions_of_windows_get_the_samples_that_are_left(tmp_path, caplog):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(20)).replace("7}", "7"))

    def doubled(samples):
        return [2 * sample["number"] for sample in samples]

    loader = make(JsonDataset(str(path)), 4, window_fn=doubled, shuffle=False)
    assert [*chain.from_iterable(loader)] == [2 * number for number in range(20) if number not in (7, 17)]
    assert f"shard {str(path)!r}: line 7 (from 0" in caplog.text


class Unreadable(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        if sample_id % 10 == 4:
            raise ValueError("no four")
        return super().get_item(sample_id, retry)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_leaves_out_what_a_subclass_cannot_make(processes, tmp_path, num_workers):
    path = write(tmp_path / "stream", 50, columns=("number",))

    def opened():
        dataset = Unreadable(local=path, shuffle=True, shuffle_seed=1, world=World())
        return StreamingDataLoader(dataset, 4, on_sample_error="skip", window_size=8, num_workers=num_workers)

    with opened() as loader:
        batches = list(loader)
        numbers = [*chain.from_iterable(batch["number"].tolist() for batch in batches)]
        assert sorted(numbers) == [number for number in range(50) if number % 10 != 4]
        assert loader.statistics().skipped_samples == 5
    with opened() as loader:
        had = list(islice(loader, 4))
        state = loader.state_dict()
    with at_state(opened(), state) as loader:
        for found, expected in zip([*had, *loader], batches, strict=True):
            assert torch.equal(found["number"], expected["number"])


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("path", "here", "there"),
        CacheFullError("path", 3, 2, "no file to evict"),
        DownloadError("s3://b/a.mds", [("status 503", 0.2)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_wrong_with_dataset_store_or_machine_is_no_samples_fault(error):
    class Raising(Counted):
        def __getitem__(self, index):
            raise error

    with pytest.raises(type(error)):
        list(make(Raising(9)))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"on_sample_error": "ignore"}, "on_sample_error"),
        ({"sampler": DistributedSampler(range(9), 2, 0), "shuffle": None}, "sampler"),
        ({"dataset": iter(()), "shuffle": None}, "dataset"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(options, name):
    dataset = options.pop("dataset", range(9))
    with pytest.raises(ConfigurationError, match=f"^{name}"):
        list(make(dataset, **options))


def test_a_state_with_samples_left_out_is_refused_by_a_loader_that_raises():
    loader = make(Broken(30, [4]))
    list(islice(loader, 3))
    with pytest.raises(StateMismatchError, match="on_sample_error"):
        DataLoader(range(30), 3, shuffle=True, seed=5).load_state_dict(saved([loader]))
    with pytest.raises(TypeError, match="on_sample_error"):
        len(loader)
