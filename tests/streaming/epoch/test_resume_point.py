import pickle

import pytest

from fkat_data.streaming.epoch.resume_point import ResumePoint, SharedResumePoint


def test_an_iteration_is_the_next_epoch_and_keeps_what_is_settled():
    shared = SharedResumePoint()
    assert shared.current() is None
    assert shared.next() == ResumePoint()
    shared.go_to(ResumePoint(3, 40, 2, 7, 4))
    assert shared.begin() == ResumePoint(3, 40, 2, 7, 4) == shared.current()
    assert shared.begin() == ResumePoint(4, 0, 2, 7, 4)
    assert shared.next() == ResumePoint(5, 0, 2, 7, 4)


def test_workers_of_one_iteration_begin_together():
    shared = SharedResumePoint()
    # Two workers, whose first and second rounds interleave as they like.
    assert [shared.begin(11, 0).epoch for _ in range(2)] == [0, 0]
    assert [shared.begin(11, 1).epoch for _ in range(2)] == [1, 1]
    # Other workers, of another DataLoader iteration.
    assert [shared.begin(13, 0).epoch for _ in range(2)] == [2, 2]
    assert shared.begin().epoch == 3
    shared.go_to(ResumePoint(1, 8))
    assert [shared.begin(13, 1) for _ in range(2)] == [ResumePoint(1, 8)] * 2


def test_a_copy_has_its_own_resume_point():
    shared = SharedResumePoint()
    shared.begin()
    copy = pickle.loads(pickle.dumps(shared))
    assert copy.begin().epoch == 1
    assert shared.next().epoch == 1


@pytest.mark.usefixtures("nothing_left_behind")
def test_nothing_is_left_of_it():
    for _ in range(3):
        SharedResumePoint().begin()
