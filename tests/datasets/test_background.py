import threading

import pytest

from fkat_data.datasets.background import BackgroundCall

WAIT_S = 30


def test_the_outcome_is_fetched_later():
    call = BackgroundCall(lambda: threading.current_thread() is threading.main_thread())
    assert call.result() is False
    assert call.is_done


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_is_raised_where_the_outcome_is_fetched(error):
    def fail():
        raise error

    call = BackgroundCall(fail)
    with pytest.raises(type(error)):
        call.result()


def test_what_is_dropped_is_let_go_of_before_and_after_it_is_there():
    class Thing:
        pass

    begun, may_end = threading.Event(), threading.Event()

    def make():
        begun.set()
        assert may_end.wait(WAIT_S)
        return Thing()

    late = BackgroundCall(make)
    assert begun.wait(WAIT_S)
    late.drop()
    may_end.set()
    late.wait()
    assert late._results == []
    early = BackgroundCall(Thing)
    early.wait()
    early.drop()
    assert early._results == []


def test_a_call_after_another_begins_when_that_one_is_over_and_not_at_all_if_it_is_dropped():
    order = []
    may_end = threading.Event()

    def first():
        assert may_end.wait(WAIT_S)
        order.append("first")

    before = BackgroundCall(first)
    dropped = BackgroundCall(lambda: order.append("dropped"), before)
    after = BackgroundCall(lambda: order.append("after"), before)
    dropped.drop()
    may_end.set()
    after.result()
    dropped.wait()
    assert order == ["first", "after"]
