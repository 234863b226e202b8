"""A window function makes rows of samples: each row is delivered once, in one order, however it is made and resumed."""

import copy
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from functools import partial
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from drop_in_examples import Counted, CountingEpochs
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from own_workers import worker_pids
from ranks_of_windows import rows_of
from torch.utils.data import ChainDataset, DistributedSampler, RandomSampler, WeightedRandomSampler
from walks import at_state, begun, delivered, saved

from fkat_data import ConfigurationError, DataLoader, ReplayMismatchError, StateMismatchError
from fkat_data.streaming import MDSWriter

RANKS = Path(__file__).with_name("ranks_of_windows.py")


class Rows:
    """Makes so many rows of each sample, by its number: (sample, row)."""

    def __init__(self, counts):
        self.counts = counts

    def __call__(self, samples):
        return [(sample, row) for sample in samples for row in range(self.counts[sample % len(self.counts)])]


class Drawn:
    """Yields a row with what the window draws, and one with what its sample has drawn."""

    def __call__(self, samples):
        return [[float(torch.rand(())), float(sample)] for sample in samples]


class Draws(Counted):
    def __getitem__(self, index):
        return torch.rand(())


def as_drawn(rows):
    return [*chain.from_iterable(rows), float(torch.rand(()))]


def raise_on_30(samples):
    if 30 in samples:
        raise ValueError("no thirty")
    return samples


class Backwards(Counted):
    def __iter__(self):
        return reversed(range(self.count))


class Lazy(Backwards):
    """Draws each sample when it is asked for."""

    def __init__(self, count):
        super().__init__(count)
        self.generator = torch.Generator().manual_seed(count)

    def __iter__(self):
        left = list(range(self.count))
        while left:
            yield left.pop(int(torch.randint(len(left), (), generator=self.generator)))


SAMPLERS = {
    "lazy": Lazy,
    "a generator": lambda count: RandomSampler(range(count), generator=torch.Generator().manual_seed(count)),
    "the global one": lambda count: RandomSampler(range(count)),
    "weights": lambda count: WeightedRandomSampler([1.0] * count, count, replacement=False),
    "own": Backwards,
}


def make(num_samples, counts, *, size=3, window_size=4, num_workers=0, ranks=(1, 0), **options):
    options = {"shuffle": True, "seed": 5, "collate_fn": list, **options}
    if options["shuffle"] in SAMPLERS:
        options |= {"sampler": SAMPLERS[options["shuffle"]](num_samples), "shuffle": False}
    loader = DataLoader(
        range(num_samples), size, window_fn=Rows(counts), window_size=window_size, num_workers=num_workers, **options
    )
    loader.deal_out(*ranks)
    return loader


def epoch_of(num_samples, counts, **options):
    with make(num_samples, counts, **options) as loader:
        return list(loader)


shapes = st.fixed_dictionaries(
    {
        "num_samples": st.integers(1, 30),
        "counts": st.lists(st.integers(0, 4), min_size=1, max_size=4),
        "size": st.sampled_from([None, 1, 2, 5, 9]),
        "window_size": st.integers(1, 9),
        "shuffle": st.sampled_from([False, True, *SAMPLERS]),
    }
)


@given(shapes, st.booleans())
def test_rows_come_in_the_order_of_the_samples_and_batches_are_full_but_for_the_last(shape, drop_last):
    size, counts = shape["size"], shape["counts"]
    drop_last = drop_last and size is not None
    batches = epoch_of(**shape, drop_last=drop_last)
    order = list(range(shape["num_samples"]))
    if shape["shuffle"]:
        kind = shape["shuffle"]
        chosen = {"sampler": SAMPLERS[kind](len(order))} if kind in SAMPLERS else {"shuffle": True}
        order = [*chain.from_iterable(DataLoader(order, shape["window_size"], seed=5, collate_fn=list, **chosen))]
    expected = Rows(counts)(order)
    rows = batches if size is None else [*chain.from_iterable(batches)]
    if drop_last:
        expected = expected[: len(expected) // size * size]
    if size is None:
        rows = [tuple(row) for row in rows]
    assert rows == expected
    if size is not None:
        assert all(len(batch) == size for batch in batches[:-1])


@given(shapes, st.data())
def test_a_state_goes_on_with_the_next_row_at_every_cut(shape, data):
    whole = epoch_of(**shape)
    loader, had = make(**shape), []
    for cut in sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))):
        had += islice(loader, max(0, cut - len(had)))
        state = saved([loader])
        loader = at_state(make(**shape), state)
        assert (loader.epoch, loader.step) == (state["place"][0]["epoch"], state["place"][0]["step"])
    # Where only windows without a row are left, the next epoch may begin at once.
    assert had + delivered(loader, None) == whole


counts_of_ranks = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(shapes, st.lists(counts_of_ranks, min_size=1, max_size=3), st.integers(1, 4))
def test_each_row_comes_once_though_the_number_of_ranks_changes_again_and_again(shape, trip, last):
    assume(max(last, *map(len, trip)) <= -(-shape["num_samples"] // shape["window_size"]))  # else an error says so
    state, rows = None, []
    for counts in [*trip, [None] * last]:
        loaders = [make(**shape, ranks=(len(counts), rank)) for rank in range(len(counts))]
        for loader, count in zip(loaders, counts, strict=True):
            if state is not None:
                loader.load_state_dict(state)
            found = delivered(loader, count)
            rows += found if shape["size"] is None else [*chain.from_iterable(found)]
        if all(loader.epoch for loader in loaders):
            break
        state = saved(loaders)
    assert sorted(map(tuple, rows)) == sorted(Rows(shape["counts"])(range(shape["num_samples"])))


def test_a_place_of_two_microbatches_ago_can_be_taken_back_to():
    loader = make(30, [2, 0, 3])
    had = list(islice(loader, 5))
    assert loader.take_back()
    other = at_state(make(30, [2, 0, 3]), saved([loader]))
    assert had[:4] + list(other) == epoch_of(30, [2, 0, 3])


@pytest.mark.parametrize("num_workers", [1, 2])
def test_any_number_of_workers_gives_the_same_microbatches_and_goes_on_with_the_others_state(processes, num_workers):
    counts = [3, 0, 1, 7, 2]
    whole = epoch_of(200, counts, window_size=16, size=7)
    with make(200, counts, window_size=16, size=7, num_workers=num_workers) as loader:
        assert list(loader) == whole
        second = list(loader)
        loader.set_epoch(1)
        had = list(islice(loader, 11))
        state = saved([loader])
    assert had == second[:11]
    with at_state(make(200, counts, window_size=16, size=7, num_workers=3 - num_workers), state) as loader:
        assert had + list(loader) == second


@pytest.mark.parametrize("size", [None, 4])
def test_draws_are_the_windows_and_the_rows_own_whoever_makes_them(processes, size):
    def epoch(num_workers, ranks=(1, 0)):
        collate_fn = None if size is None else as_drawn
        loader = DataLoader(
            Draws(40), size, window_fn=Drawn(), window_size=6, seed=2, collate_fn=collate_fn, num_workers=num_workers
        )
        loader.deal_out(*ranks)
        with loader:
            return [float(value) for batch in loader for value in batch]

    torch.manual_seed(8)
    whole = epoch(0)
    torch.manual_seed(9)
    assert epoch(2) == whole
    if size is None:  # of two ranks, each has every second window
        of_ranks = [epoch(0, (2, rank)) for rank in range(2)]
        windows = [whole[first : first + 12] for first in range(0, 80, 12)]
        assert [[*chain.from_iterable(windows[rank::2])] for rank in range(2)] == of_ranks


def test_killed_workers_cost_no_row(processes):
    counts = [3, 0, 1, 7, 2]
    whole = epoch_of(400, counts, window_size=16, size=7)
    with make(400, counts, window_size=16, size=7, num_workers=2, max_worker_restarts=9) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(batch)
            if number in (3, 40, 41, 80):
                pids = worker_pids()  # one that was killed before may not be replaced yet
                os.kill(pids[number % len(pids)], signal.SIGKILL)
    assert found == whole


def with_a_row_of_its_own(samples):
    return [*samples, os.urandom(4).hex()]


def test_rows_that_a_successor_makes_in_another_way_are_an_error(processes):
    options = {"num_workers": 1, "max_worker_restarts": 9, "prefetch_factor": 1, "collate_fn": list}
    with DataLoader(range(400), 2, window_fn=with_a_row_of_its_own, window_size=20, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        os.kill(worker_pids()[0], signal.SIGKILL)
        with pytest.raises(ReplayMismatchError, match="window 0"):
            list(iterator)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_comes_in_its_place_and_names_the_function_and_the_samples(processes, num_workers):
    loader = DataLoader(range(60), 4, window_fn=raise_on_30, window_size=8, collate_fn=list, num_workers=num_workers)
    said = r"no thirty\n.*raise_on_30, of window 3 \(samples 24, 25, 26, 27, 28, …\)"
    with loader, pytest.raises(ValueError, match=said):
        for number, _ in enumerate(loader):  # noqa: B007 - used behind the loop
            pass
    assert number == 5


def test_functions_in_a_list_are_called_one_on_what_the_other_has_returned():
    def doubled(rows):
        return [2 * row for row in rows]

    def odd_left_out(rows):
        return [row for row in rows if row % 2 == 0]

    loader = DataLoader(range(10), 3, window_fn=[odd_left_out, doubled], collate_fn=list)
    assert list(loader) == [[0, 4, 8], [12, 16]]


@pytest.mark.parametrize("dataset", [range(10), [], ChainDataset([])])
def test_an_epoch_without_a_row_ends_and_says_so(dataset, caplog):
    loader = DataLoader(dataset, 3, window_fn=lambda samples: [], window_size=4)
    assert list(loader) == []
    assert "epoch 0 has no microbatch" in caplog.text
    assert loader.epoch == 1


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"window_fn": 3}, "window_fn"),
        ({"window_fn": iter}, r"window_fn = .*iter.*list_iterator"),
        ({"batch_sampler": [[1]], "batch_size": 1, "shuffle": None}, "batch_sampler"),
        ({"sampler": DistributedSampler(range(9), 2, 0), "shuffle": None}, "sampler"),
        ({"sampler": map(int, range(9)), "shuffle": None}, "sampler"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(options, name):
    with pytest.raises(ConfigurationError, match=name):
        list(DataLoader(range(9), **{"window_fn": Rows([1]), "batch_size": 2, **options}))


class Lying(list):
    def __len__(self):
        return 8


@pytest.mark.parametrize("given", [7, 8, 9, 12])
def test_a_sampler_that_gives_another_number_than_its_length_is_an_error(given):
    loader = DataLoader(range(20), 2, sampler=Lying(range(given)), window_fn=Rows([1]), window_size=4)
    if given == 8:
        assert torch.cat([batch[0] for batch in loader]).tolist() == list(range(8))
    else:
        with pytest.raises(ConfigurationError, match=r"sampler = <.*samples>: expected 8, as its len"):
            list(loader)


def test_a_rank_that_ends_long_before_the_others_begins_the_next_epoch_as_they_do():
    shape = {"num_samples": 700, "counts": [1], "size": None, "window_size": 1, "shuffle": "a generator"}
    with make(**shape) as loader:
        epochs = [list(loader) for _ in range(3)]
    with make(**shape, ranks=(300, 0)) as loader:
        assert [list(loader) for _ in range(3)] == [[rows[0], rows[300], rows[600]] for rows in epochs]
    with make(**shape, ranks=(300, 150)) as loader:
        assert [list(loader) for _ in range(3)] == [[rows[150], rows[450]] for rows in epochs]
    with make(**shape, ranks=(350, 0)) as loader:
        found = []
        for _ in epochs:
            for _microbatch in loader:
                loader.provenance()
            found.append(loader.local_state_dict())
            assert (loader.epoch, loader.step) == (len(found), 0)
    for place, rows in zip(found, epochs[1:], strict=False):
        with at_state(make(**shape, ranks=(350, 0)), place) as loader:
            assert list(loader) == [rows[0], rows[350]]


@pytest.mark.long
def test_ranks_that_leave_an_epoch_begin_the_next_one_in_one_order(some):
    shape = {"num_samples": 700, "counts": [1], "size": None, "window_size": 1, "shuffle": "lazy"}
    with make(**shape) as loader:
        first, second = list(loader), list(loader)
    for num_delivered in some([(0, 0), (1, 1), (9, 40), (40, 7)], 1):
        expected = second if any(num_delivered) else first
        for rank, count in enumerate(num_delivered):
            with make(**shape, ranks=(2, rank)) as loader:
                assert list(islice(iter(loader), count)) == first[rank::2][:count]
                assert list(loader) == expected[rank::2]


def test_the_order_of_a_sampler_goes_on_over_epochs_and_another_one_is_refused():
    options = {"size": 4, "shuffle": "a generator"}
    with make(30, [2, 0, 1], **options) as loader:
        epochs = [list(loader) for _ in range(3)]
    assert len({repr(each) for each in epochs}) == 3
    for epoch, cut in ((0, 3), (1, 0), (1, 4), (2, 7)):
        with make(30, [2, 0, 1], **options) as loader:
            for _ in range(epoch):
                list(loader)
            had = list(islice(loader, cut)) if cut else []
            state = saved([loader])
        with at_state(make(30, [2, 0, 1], **options), state) as loader:
            assert [had + list(loader), *(list(loader) for _ in range(2 - epoch))] == epochs[epoch:]
    with make(30, [2, 0, 1], size=4, shuffle="own") as loader:
        next(iter(loader))
        state = saved([loader])
    other = DataLoader(range(30), 4, sampler=list(range(30)), window_fn=Rows([2, 0, 1]), window_size=4, seed=5)
    other.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="the sampler gives other samples than when the state was saved"):
        list(other)


def test_the_number_of_microbatches_is_not_known():
    with pytest.raises(TypeError, match="window_fn"):
        len(make(30, [2]))


def test_a_state_of_other_windows_or_of_none_is_refused_by_name():
    windowed, plain = make(30, [2]), DataLoader(range(30), 3, shuffle=True, seed=5)
    next(iter(windowed))
    next(iter(plain))
    for other, saver, field in (
        (make(30, [2], window_size=5), windowed, "window_size"),
        (DataLoader(range(30), 3, shuffle=True, window_fn=max, window_size=4), windowed, "window_fn"),
        (plain, windowed, "window_fn"),
        (windowed, plain, "window_"),
    ):
        with pytest.raises(StateMismatchError, match=field):
            other.load_state_dict(saver.state_dict())


def test_ranks_that_are_an_epoch_apart_keep_their_number():
    loaders = [make(30, [2], ranks=(2, rank)) for rank in range(2)]
    list(loaders[0])
    next(iter(loaders[0]))
    next(iter(loaders[1]))
    state = saved(loaders)
    alone = make(30, [2])
    with pytest.raises(StateMismatchError, match="epoch"):
        alone.load_state_dict(state)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("num_workers", "kind"),
    [(0, "indices"), (1, "indices"), (1, "a sampler"), (1, "a stream"), (1, "strands")],
)
def test_real_ranks_end_an_epoch_together_though_their_windows_make_uneven_numbers_of_rows(
    prepared, tmp_path, num_workers, kind
):
    stream = [kind] if kind in {"strands", "a sampler"} else []
    if kind == "a stream":
        stream = [tmp_path / "stream"]
        with MDSWriter(out=str(stream[0]), columns={"number": "int"}, size_limit=500) as writer:
            for number in range(300):
                writer.write({"number": number})

    def run(num_ranks, num_steps):
        for rank in prepared.run_ranks(num_ranks, RANKS, tmp_path, num_steps, num_workers, *stream, folder=tmp_path):
            assert rank.returncode == 0, rank.stderr
        return json.loads((tmp_path / "content.json").read_text())

    begun = run(3, 5)
    assert [count for count, _, _ in begun["counts"]] == [5, 5, 5]
    ended = run(2, 0)
    numbers = ended["counts"]
    assert len({tuple(each) for each in numbers}) == 1  # all ranks have as many, in both epochs
    assert numbers[0][0] > 0
    assert numbers[0][1] > 0
    rows = list(map(tuple, ended["rows"]))
    assert len(set(rows)) == len(rows)
    assert set(rows) < set(rows_of(range(300)))


def test_ranks_that_leave_at_different_steps_end_as_any_other_program(processes):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Interpreters of their own, one of which ends while the other's round is under way.
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    done = subprocess.run(
        [sys.executable, *launcher, str(RANKS.with_name("leaving_ranks.py")), "6"],
        # Without the sitecustomize of tests, with which an interpreter ends otherwise.
        env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_a_rank_that_waits_for_one_that_has_ended_says_what_for(processes, prepared, tmp_path):
    left, ended = prepared.run_ranks(2, RANKS.with_name("leaving_ranks.py"), 4000, folder=tmp_path)
    assert (left.returncode, ended.returncode) == (1, 0)
    assert "while ranks exchanged how many microbatches" in left.stderr


def test_ranks_go_on_from_states_around_an_epochs_end_which_they_reach_one_by_one(processes, prepared, tmp_path):
    for rank in prepared.run_ranks(3, RANKS.with_name("ends_of_ranks.py"), folder=tmp_path):
        assert rank.returncode == 0, rank.stderr


@pytest.mark.parametrize("kind", [[], ["strands"]], ids=["indices", "strands"])
def test_ranks_end_an_epoch_together_though_each_is_interrupted_again_and_again(processes, prepared, tmp_path, kind):
    for rank in prepared.run_ranks(2, RANKS.with_name("interrupted_ranks.py"), tmp_path, 1, *kind, folder=tmp_path):
        assert rank.returncode == 0, rank.stderr
    counts, interruptions, rows = zip(*json.loads((tmp_path / "content.json").read_text()), strict=True)
    assert counts[0] == counts[1] > 50
    assert min(interruptions) > 20
    had = [tuple(row) for of_rank in rows for row in of_rank]
    assert len(set(had)) == len(had)
    assert set(had) <= set(rows_of(range(300)))


@pytest.mark.long
@pytest.mark.parametrize("share", [60, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_a_loop_goes_on_where_an_interrupted_call_has_left_it(share):
    from front_door_sweep import sweep_beside

    assert sweep_beside(partial(make, 31, [0, 1, 2], window_size=6), share) > 100


def test_a_copy_within_an_epoch_of_windows_begins_it_as_it_says():
    whole = make(30, [1], size=2, window_size=8)
    epoch = [*map(str, whole)]
    loader = make(30, [1], size=2, window_size=8)
    rest = begun(loader, 6)
    for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert (copied.epoch, copied.step) == (0, 0)
        assert [*map(str, at_state(make(30, [1], size=2, window_size=8), copied.state_dict()))] == epoch
        assert [*map(str, copied)] == epoch
    assert [*map(str, rest)] == epoch[6:]
    loader.load_state_dict(whole.state_dict())
    assert [*map(str, copy.deepcopy(loader))] == [*map(str, whole)]


def rows_from_12(window):
    return [row for row in window if row >= 12]


@pytest.mark.parametrize("sampler", [Backwards, lambda count: RandomSampler(range(count)), CountingEpochs])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_where_windows_without_rows_are_left_of_a_resumed_epoch_the_next_one_is_as_without_the_stop(sampler, cut):
    def made():
        options = {"window_fn": rows_from_12, "window_size": 5, "collate_fn": list, "seed": 3}
        return DataLoader(range(15), 1, sampler=sampler(15), **options)

    whole, saver, resumed = made(), made(), made()
    expected = [(microbatch, whole.state_dict()) for _ in range(3) for microbatch in whole]
    begun(saver, cut)
    resumed.load_state_dict(saver.state_dict())
    found = []
    while resumed.epoch < 3:
        found += [(microbatch, resumed.state_dict()) for microbatch in resumed]
    assert [microbatch for microbatch, _ in found] == [microbatch for microbatch, _ in expected[cut:]]
    if sampler is not CountingEpochs:  # what is known of its earlier iterations is in its states
        assert [state for _, state in found] == [state for _, state in expected[cut:]]
