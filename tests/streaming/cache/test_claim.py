import pytest
from cache_examples import leftovers_in

from fkat_data.streaming.cache.cache import Claim
from fkat_data.streaming.cache.cache_directory import CacheDirectory


@pytest.fixture
def directory(tmp_path):
    return CacheDirectory(tmp_path)


def test_one_has_the_claim_to_a_file_and_nobody_is_in_the_way_of_another_file(directory, tmp_path):
    with Claim(directory, "a") as first, Claim(directory, "a") as second, Claim(directory, "b") as other:
        assert first.try_take()
        assert not second.try_take()
        assert other.try_take()
        first.close()
        # Its file is gone by now: the claim is taken on a new one.
        assert second.try_take()
        with Claim(directory, "a") as third:
            assert not third.try_take()
    assert leftovers_in(tmp_path) == []


def test_a_claim_that_was_not_taken_takes_nothing_away(directory, tmp_path):
    with Claim(directory, "a") as first:
        assert first.try_take()
        Claim(directory, "a").close()
        with Claim(directory, "a") as second:
            assert not second.try_take()
        assert len(leftovers_in(tmp_path)) == 1


def test_a_claim_outlives_those_who_clean_up(directory):
    with Claim(directory, "a") as first:
        directory.sweep("claims")  # it is not taken yet, and looks like a dead process's
        assert first.try_take()
        directory.sweep("claims")
        with Claim(directory, "a") as second:
            assert not second.try_take()
