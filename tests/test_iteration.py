from hypothesis import given
from hypothesis import strategies as st

from fkat_data.iteration import Cursor
from fkat_data.position import START, Position

epochs = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=3)


def start(cursor):
    cursor.start(cursor.first())
    return cursor.position


def deliver(cursor, **last):
    cursor.advance(**last)
    assert cursor.hand_over("a microbatch") == "a microbatch"


def run(cursor, sizes):
    """Deliver an epoch whose shards have these sizes; yield after every step."""
    for index, size in enumerate(sizes):
        is_last_shard = index == len(sizes) - 1
        for microbatch in range(size):
            deliver(cursor, is_last_in_shard=microbatch == size - 1, is_last_shard=is_last_shard)
            yield index, microbatch + 1
        if size == 0:
            cursor.pass_shard(is_last_shard=is_last_shard)
            yield index, 0


@given(sizes_of_epochs=epochs)
def test_the_position_is_what_was_delivered_and_canonical(sizes_of_epochs):
    cursor = Cursor()
    for epoch, sizes in enumerate(sizes_of_epochs):
        assert start(cursor) == Position(epoch, 0, 0, 0)
        delivered = 0
        for index, count in run(cursor, sizes):
            delivered += count > 0
            if count == sizes[index]:
                is_end = index == len(sizes) - 1
                expected = Position(epoch + 1, 0, 0, 0) if is_end else Position(epoch, index + 1, 0, delivered)
            else:
                expected = Position(epoch, index, count, delivered)
            assert cursor.position == expected


def test_an_epoch_that_was_left_early_is_not_taken_up_again():
    cursor = Cursor()
    start(cursor)
    deliver(cursor, is_last_in_shard=False, is_last_shard=False)
    assert start(cursor) == Position(1, 0, 0, 0)
    assert start(cursor) == Position(1, 0, 0, 0)


def test_an_epoch_that_was_loaded_is_taken_up_until_something_is_delivered():
    cursor = Cursor()
    cursor.load(Position(2, 3, 4, 50))
    assert start(cursor) == start(cursor) == Position(2, 3, 4, 50)
    deliver(cursor, is_last_in_shard=False, is_last_shard=False)
    assert cursor.position == Position(2, 3, 5, 51)
    assert start(cursor) == Position(3, 0, 0, 0)


def test_loading_the_start_is_the_start():
    cursor = Cursor()
    start(cursor)
    deliver(cursor, is_last_in_shard=False, is_last_shard=False)
    cursor.load(START)
    assert start(cursor) == START
