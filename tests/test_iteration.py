import pytest

from fkat_data.iteration import Cursor
from fkat_data.plan.place import START, Position


def start(cursor):
    cursor.start(cursor.first())
    return cursor.position


def deliver(cursor, after):
    cursor.advance(after)
    assert cursor.hand_over("a microbatch") == "a microbatch"


def test_the_position_moves_when_the_microbatch_is_handed_over_and_not_before():
    cursor = Cursor()
    start(cursor)
    cursor.advance(Position(0, 0, 1, 1))
    assert cursor.position == START
    cursor.hand_over("a microbatch")
    assert cursor.position == Position(0, 0, 1, 1)


def test_the_last_microbatch_is_taken_back_once_and_only_where_it_was_the_last():
    cursor = Cursor()
    start(cursor)
    assert not cursor.take_back()
    deliver(cursor, Position(0, 0, 1, 1))
    assert cursor.take_back()
    assert cursor.position == START
    assert not cursor.take_back()


def test_an_epoch_that_was_left_early_is_not_taken_up_again():
    cursor = Cursor()
    start(cursor)
    deliver(cursor, Position(0, 0, 1, 1))
    assert start(cursor) == Position(1, 0, 0, 0)
    assert start(cursor) == Position(1, 0, 0, 0)


def test_an_epoch_that_was_loaded_is_taken_up_until_something_is_delivered():
    cursor = Cursor()
    cursor.load(Position(2, 3, 4, 50))
    assert start(cursor) == start(cursor) == Position(2, 3, 4, 50)
    deliver(cursor, Position(2, 3, 5, 51))
    assert start(cursor) == Position(3, 0, 0, 0)


@pytest.mark.parametrize("passed", [Position(2, 4, 0, 50), Position(3, 0, 0, 0)])
def test_empty_shards_behind_a_loaded_place_do_not_leave_its_epoch(passed):
    cursor = Cursor()
    cursor.load(Position(2, 3, 0, 50))
    start(cursor)
    cursor.pass_shard(passed)
    assert start(cursor) == passed


def test_loading_the_start_is_the_start():
    cursor = Cursor()
    start(cursor)
    deliver(cursor, Position(0, 0, 1, 1))
    cursor.load(START)
    assert start(cursor) == START
