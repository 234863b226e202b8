import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.plan.shard_plan import PureShardPlan, ReplayedShardPlan, shard_plan
from fkat_data.samplers import ShardSampler


class Growing(ShardSampler):
    def shards(self, epoch):
        return [f"{epoch}{name}" for name in "abcde"[: 1 + epoch]]


class Counted:
    """A user's iterable that counts how often it is begun."""

    def __init__(self):
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        yield from ("a", "b", "c")


def test_a_pure_plan_answers_in_any_order():
    plan = shard_plan(Growing())
    assert isinstance(plan, PureShardPlan)
    assert [plan.shard(2, 1), plan.shard(0, 0), plan.shard(0, 1), plan.shard(2, 2)] == ["2b", "0a", None, "2c"]
    assert [plan.num_shards(epoch) for epoch in (3, 0)] == [4, 1]


def test_a_digest_names_the_order_of_its_epoch():
    plan = shard_plan(Growing())
    digests = [plan.digest(epoch) for epoch in (0, 1, 2, 1, 0)]
    assert digests[0] == digests[4]
    assert digests[1] == digests[3]
    assert len(set(digests)) == 3
    assert shard_plan(["a", "b"]).digest(0) != shard_plan(["b", "a"]).digest(0)
    assert shard_plan(["a", "b"]).digest(0) != shard_plan([["a", "b"]]).digest(0)
    assert len(digests[0]) == 16


def test_a_list_is_a_plan_that_later_changes_to_it_do_not_reach():
    shards = ["a", ["b", "c"]]
    plan = shard_plan(shards)
    shards.append("d")
    assert [plan.shard(7, index) for index in range(3)] == ["a", ["b", "c"], None]


@pytest.mark.parametrize(
    "sampler", [None, 5, "shards/*.parquet", b"a", [], (), [None], [[]], ["a", None], [[{1}]], [""], {"a": 1}], ids=repr
)
def test_what_is_no_sampler_is_refused_by_name(sampler):
    with pytest.raises(ConfigurationError, match="shard_sampler"):
        shard_plan(sampler).shard(0, 0)


def test_a_sampler_without_shards_is_refused():
    class Empty(ShardSampler):
        def shards(self, epoch):
            return []

    with pytest.raises(ConfigurationError, match="shard_sampler"):
        shard_plan(Empty())


def test_a_replayed_plan_reads_each_epoch_once_and_goes_back_by_reading_again():
    sampler = Counted()
    plan = shard_plan(sampler)
    assert isinstance(plan, ReplayedShardPlan)
    assert [plan.shard(0, index) for index in range(4)] == ["a", "b", "c", None]
    assert plan.num_shards(0) == 3
    assert [plan.shard(0, index) for index in (2, 0, 1)] == ["c", "a", "b"]
    assert sampler.begun == 1
    assert plan.shard(1, 2) == "c"
    assert plan.num_shards(1) is None
    assert plan.shard(0, 0) == "a"
    assert sampler.begun == 3


def test_a_replayed_plan_checks_each_shard_as_it_comes():
    plan = shard_plan(iter(["a", {5}]))
    assert plan.shard(0, 0) == "a"
    with pytest.raises(ConfigurationError, match="shard_sampler"):
        plan.shard(0, 1)


def test_an_iterable_without_shards_is_refused_when_it_is_read():
    with pytest.raises(ConfigurationError, match=r"at least one shard in epoch 0.*it yielded none"):
        shard_plan(iter([])).shard(0, 0)
