import dataclasses
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loader_examples import make

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

CASES = {
    "nothing was delivered": (
        dataclasses.replace(STARVED, delivered=0),
        "none",
        "",
        "no microbatch was delivered yet",
    ),
    "the caller": (
        dataclasses.replace(STARVED, waited_s=0.04),
        "caller",
        "",
        "the trainer waited 0.4 % of the time: the loader keeps up, and training itself limits the speed",
    ),
    "the dataset": (
        STARVED,
        "produce",
        "raise num_shard_prefetches from 1 to 2",
        (
            "the trainer waited 31 % of the time; the worker spent 88 % of the time making microbatches, in the DataLoader "
            "and `__getitem__`: raise num_shard_prefetches from 1 to 2"
        ),
    ),
    "a dataset far too slow": (
        dataclasses.replace(STARVED, waited_s=7.0),
        "produce",
        "raise num_shard_prefetches from 1 to 4",  # 9.5 ms a microbatch, for a step of 3 ms
        None,
    ),
    "a dataset too slow for the machine": (
        dataclasses.replace(STARVED, waited_s=9.0, num_cpus=4),
        "produce",
        "raise num_shard_prefetches from 1 to 4, and do less for each sample, or prepare it beforehand",
        None,
    ),
    "no CPU is left": (
        dataclasses.replace(STARVED, num_workers=8, num_shard_prefetches=8),
        "produce",
        "more than 8 would not help on 8 CPUs: do less for each sample, or prepare it beforehand",
        None,
    ),
    "the factory": (
        dataclasses.replace(STARVED, build_s=8.8, produce_s=1.0),
        "build",
        "raise num_shard_prefetches from 1 to 2",
        None,
    ),
    "stored bytes, which take no CPU": (
        dataclasses.replace(STARVED, store_s=8.8, produce_s=1.0, num_cpus=1),
        "store",
        "raise num_shard_prefetches from 1 to 2",
        None,
    ),
    "shared memory": (
        dataclasses.replace(STARVED, encode_s=8.8, produce_s=1.0, num_workers=8, num_shard_prefetches=8),
        "transport",
        (
            "more than 8 would not help on 8 CPUs: send tensors of smaller dtypes, and few of them instead of many Python "
            "objects"
        ),
        None,
    ),
    "copies to the device": (
        dataclasses.replace(STARVED, copied_s=9.1),
        "copy",
        "send smaller dtypes and convert them on the device",
        (
            "the trainer waited 31 % of the time; copies to the device were under way for 91 % of it: send smaller dtypes "
            "and convert them on the device"
        ),
    ),
    "the start alone": (
        dataclasses.replace(STARVED, waited_first_s=3.09),
        "start",
        "a longer run needs no change, and one loader should serve all epochs",
        (
            "the trainer waited 31 % of the time: 3.09 s of 3.1 s for the first microbatch, then 0.1 % of the rest; a "
            "longer run needs no change, and one loader should serve all epochs"
        ),
    ),
    "the start above all, and some waiting after it": (
        dataclasses.replace(STARVED, elapsed_s=9.0, waited_s=6.81, waited_first_s=6.54),
        "start",
        "one loader should serve all epochs, and a longer run shows what limits the rest",
        (
            "the trainer waited 76 % of the time: 6.54 s of 6.81 s for the first microbatch, then 11 % of the rest; one "
            "loader should serve all epochs, and a longer run shows what limits the rest"
        ),
    ),
    "epochs of one microbatch": (
        dataclasses.replace(STARVED, delivered=10, waited_first_s=3.0, waiting=Durations.of({"292": 10}), num_cpus=1),
        "produce",
        "more than 1 would not help on 1 CPUs: do less for each sample, or prepare it beforehand",
        None,
    ),
    "memory": (
        dataclasses.replace(STARVED, produce_s=3.0, blocked_s=6.0),
        "produce",
        "let them prefetch more: raise num_microbatch_prefetches (-1: as many as help) or memory_limit_bytes",
        None,
    ),
    "nothing ahead": (
        dataclasses.replace(STARVED, produce_s=3.0, idle_s=6.0, num_shard_prefetches=0),
        "produce",
        "raise num_shard_prefetches from 0 to 1, so that the next shard begins before the caller needs it",
        None,
    ),
    "few shards": (
        dataclasses.replace(STARVED, produce_s=3.0, idle_s=6.0, num_workers=4, num_shard_prefetches=4),
        "produce",
        "there are too few shards in an epoch for them: make smaller ones, or let epochs follow one another sooner",
        None,
    ),
    "in process": (
        dataclasses.replace(STARVED, num_workers=0, num_shard_prefetches=0, idle_s=0.0, encode_s=0.0),
        "produce",
        "set multiprocessing=True, so that a worker makes microbatches ahead",
        (
            "the trainer waited 31 % of the time; 100 % of that went into making microbatches, in the DataLoader "
            "and `__getitem__`: set multiprocessing=True, so that a worker makes microbatches ahead"
        ),
    ),
    "a resume": (
        dataclasses.replace(STARVED, produce_s=1.0, replay_s=7.8),
        "produce",
        "raise num_shard_prefetches from 1 to 2",
        None,
    ),
    "one that holds up others": (
        dataclasses.replace(STARVED, waited_behind_s=2.9, making=SPREAD),
        "produce",
        "make the slow ones cheaper, or look further ahead: raise num_microbatch_prefetches or memory_limit_bytes",
        (
            "the trainer waited 31 % of the time; for 94 % of that, one slow microbatch held up others that were ready "
            "(median 4.96 ms, 95 % 4.96 ms, 99 % 1.02 s, longest 1.02 s); the worker spent 88 % of the time making "
            "microbatches, in the DataLoader and `__getitem__`: make the slow ones cheaper, or look further ahead: raise "
            "num_microbatch_prefetches or memory_limit_bytes"
        ),
    ),
    "workers that say nothing": (
        LoaderStatistics(delivered=1, elapsed_s=1.0, waited_s=1.0, num_workers=1),
        "none",
        "",
        "the trainer waited 100 % of the time; the workers' activity is unknown",
    ),
}


@pytest.mark.parametrize(("statistics", "limit", "advice", "text"), CASES.values(), ids=CASES)
def test_the_verdict_names_the_limit_and_what_to_change(statistics, limit, advice, text):
    verdict = statistics.verdict
    assert (verdict.limit, verdict.advice) == (limit, advice)
    assert verdict.text.endswith(advice)
    if text is not None:
        assert str(verdict) == text


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


class LazilyOpened(torch.utils.data.Dataset):
    """Its first item takes long in each worker, as a download or an import does."""

    def __init__(self):
        self.is_open = False

    def __len__(self):
        return 30

    def __getitem__(self, index):
        time.sleep(0.005 if self.is_open else 1.5)
        self.is_open = True
        return torch.zeros(4)


def test_a_slow_first_microbatch_is_a_cause_of_its_own_though_others_are_waited_for_too(processes):
    with fkat_data.DataLoader(LazilyOpened(), 1, num_workers=1) as loader:
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
