import dataclasses
import time

import pytest
import torch
from drop_in_examples import Counted
from hypothesis import given
from hypothesis import strategies as st
from loader_examples import make
from patience import unless_held_up

import fkat_data
from fkat_data.observe import Durations, LoaderStatistics, reading

LIMITS = {"none", "start", "store", "build", "produce", "transport", "copy", "caller"}

STARVED = LoaderStatistics(
    delivered=1000,
    elapsed_s=10.0,
    waited_s=3.1,
    produced=1000,
    produce_s=8.8,
    encode_s=0.7,
    idle_s=0.5,
    num_workers=1,
    num_shard_prefetches=1,
    num_cpus=8,
)

#: By bucket: 5 ms, and a second.
SPREAD = Durations.of({"197": 95, "320": 5})

WAITED, MAKING = "the trainer waited 31 % of the time", "making microbatches, in the DataLoader and `__getitem__`: "
NO_MORE = "more than 8 would not help on 8 CPUs"

#: What is different in a loop, its limit and what to change, and for some what comes before that.
CASES = {
    "nothing was delivered": ({"delivered": 0}, "none", ""),
    "the caller": ({"waited_s": 0.04}, "caller", ""),
    "the dataset": (
        {},
        "produce",
        "raise num_shard_prefetches from 1 to 2",
        f"{WAITED}; the worker spent 88 % of the time {MAKING}",
    ),
    # 9.5 ms a microbatch, for a step of 3 ms.
    "a dataset far too slow": ({"waited_s": 7.0}, "produce", "raise num_shard_prefetches from 1 to 4"),
    "no CPU is left": (
        {"num_workers": 8, "num_shard_prefetches": 8},
        "produce",
        f"{NO_MORE}: do less for each sample, or prepare it beforehand",
    ),
    "machines of a cluster, one of them slow": (
        {
            "num_workers": 8,
            "num_shard_prefetches": 8,
            "made_on": {"a": Durations.of({"197": 9}), "b": Durations.of({"320": 9})},
        },
        "produce",
        "raise num_shard_prefetches from 8 to 9",
        f"{WAITED}; the 8 workers spent 88 % of the time {MAKING[:-2]}; b needs 1.02 s for a microbatch, and a 4.96 ms: ",
    ),
    "the factory": ({"build_s": 8.8, "produce_s": 1.0}, "build", "raise num_shard_prefetches from 1 to 2"),
    "stored bytes, which take no CPU": (
        {"store_s": 8.8, "produce_s": 1.0, "num_cpus": 1},
        "store",
        "raise num_shard_prefetches from 1 to 2",
    ),
    "shared memory": (
        {"encode_s": 8.8, "produce_s": 1.0, "num_workers": 8, "num_shard_prefetches": 8},
        "transport",
        f"{NO_MORE}: send tensors of smaller dtypes, and few of them instead of many Python objects",
    ),
    "copies to the device": (
        {"copied_s": 9.1},
        "copy",
        "send smaller dtypes and convert them on the device",
    ),
    "the start alone": (
        {"waited_first_s": 3.09},
        "start",
        "a longer run needs no change, and one loader should serve all epochs",
        f"{WAITED}: 3.09 s of 3.1 s for the first microbatch, then 0.1 % of the rest; ",
    ),
    "the start above all, and some waiting after it": (
        {"elapsed_s": 9.0, "waited_s": 6.81, "waited_first_s": 6.54},
        "start",
        "one loader should serve all epochs, and a longer run shows what limits the rest",
        "the trainer waited 76 % of the time: 6.54 s of 6.81 s for the first microbatch, then 11 % of the rest; ",
    ),
    "epochs of one microbatch": (
        {"delivered": 10, "waited_first_s": 3.0, "waiting": Durations.of({"292": 10}), "num_cpus": 1},
        "produce",
        "more than 1 would not help on 1 CPUs: do less for each sample, or prepare it beforehand",
    ),
    "memory": (
        {"produce_s": 3.0, "blocked_s": 6.0},
        "produce",
        "let them prefetch more: raise num_microbatch_prefetches (-1: as many as help) or memory_limit_bytes",
    ),
    "nothing ahead": (
        {"produce_s": 3.0, "idle_s": 6.0, "num_shard_prefetches": 0},
        "produce",
        "raise num_shard_prefetches from 0 to 1, so that the next shard begins before the caller needs it",
    ),
    "few shards": (
        {"produce_s": 3.0, "idle_s": 6.0, "num_workers": 4, "num_shard_prefetches": 4},
        "produce",
        "there are too few shards in an epoch for them: make smaller ones, or let epochs follow one another sooner",
    ),
    "in process": (
        {"num_workers": 0, "num_shard_prefetches": 0, "idle_s": 0.0, "encode_s": 0.0},
        "produce",
        "set multiprocessing=True, so that a worker makes microbatches ahead",
    ),
    "a resume": ({"produce_s": 1.0, "replay_s": 7.8}, "produce", "raise num_shard_prefetches from 1 to 2"),
    "one that holds up others": (
        {"waited_behind_s": 2.9, "making": SPREAD},
        "produce",
        "make the slow ones cheaper, or look further ahead: raise num_microbatch_prefetches or memory_limit_bytes",
        (
            f"{WAITED}; for 94 % of that, one slow microbatch held up others that were ready (median 4.96 ms, "
            f"95 % 4.96 ms, 99 % 1.02 s, longest 1.02 s); the worker spent 88 % of the time {MAKING}"
        ),
    ),
    "workers that say nothing": (
        dict.fromkeys(("produced", "produce_s", "encode_s", "idle_s"), 0) | {"delivered": 1, "waited_s": 10.0},
        "none",
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_names_the_limit_and_what_to_change(case):
    changes, limit, advice, *words = CASES[case]
    verdict = dataclasses.replace(STARVED, **changes).verdict
    assert (verdict.limit, verdict.advice) == (limit, advice)
    assert verdict.text.endswith(advice)
    for text in words:
        assert str(verdict) == text + advice


SECONDS = st.floats(0, 1e6)


@given(
    st.builds(
        LoaderStatistics,
        delivered=st.integers(0, 10**9),
        produced=st.integers(0, 10**9),
        num_workers=st.integers(0, 64),
        num_shard_prefetches=st.integers(0, 64),
        num_cpus=st.integers(1, 256),
        **{name: SECONDS for name in LoaderStatistics.__dataclass_fields__ if name.endswith("_s")},
    )
)
def test_any_numbers_have_a_verdict(statistics):
    verdict = statistics.verdict
    assert verdict.limit in LIMITS
    assert 0 <= verdict.waited_share <= 1
    assert verdict.text.startswith(("no microbatch was", "the trainer waited"))


# --- real loops --------------------------------------------------------------------------------------------------


class LazilyOpened(Counted, torch.utils.data.Dataset):
    """Its first item takes long in each worker, as a download or an import does."""

    is_open = False

    def __getitem__(self, index):
        time.sleep(0.005 if self.is_open else 1.5)
        self.is_open = True
        return torch.zeros(4)


@unless_held_up
def test_a_slow_first_microbatch_is_a_cause_of_its_own_though_others_are_waited_for_too(processes):
    with fkat_data.DataLoader(LazilyOpened(30), 1, num_workers=1, timeout=600) as loader:
        for _ in loader:
            pass
        statistics = loader.statistics()
    assert statistics.verdict.limit == "start", statistics
    assert " s for the first microbatch, then " in str(statistics)
    assert "do less" not in str(statistics)


def doing(kind):
    """A factory whose shards of ten microbatches take their time for one thing alone."""

    def factory(shard):
        if kind == "build":
            time.sleep(0.2)
        return generate()

    def generate():
        content = torch.ones(8 << 20 if kind == "transport" else 1)
        for _ in range(10):
            if kind == "store":
                with reading():
                    time.sleep(0.02)
            if kind == "produce":
                time.sleep(0.02)
            yield content

    return factory


@pytest.mark.parametrize(
    ("limit", "multiprocessing"),
    [
        *((limit, False) for limit in ("store", "build", "produce", "caller")),
        *((limit, True) for limit in ("store", "transport")),
    ],
)
@unless_held_up
def test_a_real_loop_is_judged_by_what_takes_its_time(limit, multiprocessing):
    shards = ["0", "1", "2"] if multiprocessing else ["0"]
    with make(shards, doing(limit), multiprocessing=multiprocessing, num_microbatch_prefetches=4) as loader:
        for _ in loader:
            pass  # workers start
        before = loader.statistics()
        for _ in loader:
            if limit == "caller":
                time.sleep(0.15)  # long beside what a busy machine takes for the first microbatch
        verdict = loader.statistics().since(before).verdict
    assert verdict.limit == limit, verdict
