from hypothesis import given
from hypothesis import strategies as st

from fkat_data.tools.simulation.simulated_cache import SimulatedCache

ACTIONS = st.lists(st.tuples(st.sampled_from(["make", "touch"]), st.integers(0, 6)), max_size=60)


@given(ACTIONS, st.one_of(st.none(), st.integers(10, 60)))
def test_whoever_was_not_used_for_the_longest_time_makes_room(actions, limit_bytes):
    cache, kept, evicted = SimulatedCache(limit_bytes), [], []
    for action, shard in actions:
        if action == "touch":
            cache.touch(shard)
            if shard in kept:
                kept.remove(shard)
                kept.append(shard)
        elif shard not in kept:
            while limit_bytes is not None and kept and 10 * len(kept) + 10 > limit_bytes:
                evicted.append(kept.pop(0))
            cache.reserve(10)
            cache.keep(shard, 10, 10)
            kept.append(shard)
        assert [shard for shard in range(7) if shard in cache] == sorted(kept)
        assert (cache.used_bytes, len(cache), cache.evicted) == (10 * len(kept), len(kept), evicted)


def test_what_is_being_made_counts_and_cannot_go():
    cache = SimulatedCache(25)
    cache.reserve(20)
    cache.reserve(20)
    assert (cache.used_bytes, cache.most_bytes, cache.evicted) == (40, 40, [])
    cache.keep(0, 20, 5)
    assert cache.used_bytes == 25
    cache.reserve(1)
    assert cache.evicted == [0]
