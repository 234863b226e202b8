import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.observe.events import EventRecorder
from fkat_data.observe.profile import WorkerProfile
from fkat_data.observe.stages import STAGES, StageClock, added_times, new_page, reading, stage_times


@given(st.lists(st.sampled_from(STAGES), max_size=20))
def test_the_stages_add_up_to_the_time(marks):
    began_s = time.perf_counter()
    page = new_page()
    clock = StageClock(page)
    for stage in marks:
        clock.mark(stage)
    now_s = time.perf_counter()
    times = stage_times(page, now_s)
    assert sum(times.seconds) <= now_s - began_s + 1e-9
    assert all(times.of(stage) >= 0 for stage in STAGES)
    assert all(times.of(stage) == 0 for stage in STAGES[1:] if stage not in marks)
    assert times.stage == (marks[-1] if marks else "")


def test_the_stage_in_work_counts_up_to_now():
    page = new_page()
    StageClock(page).mark("build", 3)
    times = stage_times(page, time.perf_counter() + 100)
    assert times.of("build") >= 100
    assert (times.stage, times.place) == ("build", 3)


def test_a_page_that_nobody_uses_yet_says_nothing():
    times = stage_times(new_page(), time.perf_counter())
    assert set(times.seconds) == {0.0}
    assert added_times([times, times]) == added_times([])


def test_a_stage_within_another_is_cut_out_of_it():
    clock = StageClock(new_page())
    clock.mark("produce", 5)
    with clock.installed(), reading():
        assert clock.times().stage == "store"
        time.sleep(0.05)
    assert (clock.times().stage, clock.times().place) == ("produce", 5)
    assert clock.times().of("produce") < 0.05 <= clock.times().of("store")


@pytest.mark.usefixtures("processes")
def test_what_other_threads_and_forked_children_read_is_not_measured():
    clock = StageClock(new_page())
    clock.mark("produce")
    seen = []

    def look():
        with reading():
            seen.append(clock.times().stage)

    with clock.installed():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            look()
            os._exit(0 if seen[-1] == "produce" else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert seen == ["produce"]
    assert clock.times().of("store") == 0


def test_profiler_and_timeline_are_told():
    told = []

    class Told:
        def start(self, action_name):
            told.append(("start", action_name))

        def stop(self, action_name):
            told.append(("stop", action_name))

    recorder = EventRecorder(1, 2)
    clock = StageClock(new_page(), WorkerProfile(Told(), None), recorder)
    clock.mark("build", 0, "a shard")
    with clock.within("store"):
        pass
    clock.mark("produce", 0)
    clock.mark("blocked")
    clock.mark("")
    actions = [action.removeprefix("ShardedDataLoader.") for _, action in told]
    assert actions == ["build"] * 2 + ["produce"] * 2  # a read does not cut it in pieces
    assert [kind for kind, _ in told] == ["start", "stop"] * 2
    names = [line.split('"')[3] for line in recorder.take().decode().splitlines()]
    assert names == ["build", "store", "build", "produce", "blocked"]


def test_making_is_all_that_a_microbatch_takes_and_nothing_that_came_before_it():
    """With what it reads; without what the opening and a replay read, and without the time in which it was blocked."""
    page = new_page()
    clock = StageClock(page)
    expected_s = 0.0
    with clock.installed():
        for stage, index in (("build", 0), ("replay", 0), ("produce", 1)):
            clock.mark(stage, index)
            began_s = time.perf_counter()
            with reading():
                time.sleep(0.01)
            with clock.within("blocked"):
                time.sleep(0.03)
            expected_s = time.perf_counter() - began_s - 0.03
    clock.mark("encode", 1)
    clock.count()
    making = clock.times().making
    assert making.num == 1
    assert 0.009 <= making.p50_s <= 1.03 * expected_s
    assert making == added_times([clock.times()]).making
