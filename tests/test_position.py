from fkat_data.plan.place import START, Position


def test_a_run_begins_before_everything():
    assert tuple(START) == (0, 0, 0, 0, ())


def test_a_shards_end_keeps_the_epochs_count():
    assert Position(1, 2, 3, 40).after_shard() == Position(1, 3, 0, 40)


def test_the_last_shards_end_is_the_next_epochs_start():
    assert Position(1, 2, 3, 40).after_epoch() == Position(2, 0, 0, 0)


def test_a_task_that_ends_among_others_is_remembered_until_the_epoch_ends():
    position = Position(1, 0, 7, 7).after_task(2, 3)
    assert position == Position(1, 0, 7, 7, ((2, 3),))
    assert position.after_task(0, 4).ended == ((2, 3), (0, 4))
    assert position.after_epoch() == Position(2, 0, 0, 0)


def test_positions_are_ordered_as_time_passes():
    assert START < Position(0, 0, 1, 1) < Position(0, 1, 0, 1) < Position(1, 0, 0, 0)
