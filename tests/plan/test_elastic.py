from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.plan.place import Piece, Position, deal, first_step, resplit, with_layer, without_idle

NUM_EPOCHS = 3
START = Position(0, 0, 0, 0)


class World:
    """Ranks that deliver microbatches by the rules of the loader, and a ledger of where each one came from."""

    def __init__(self, sizes, dp_size, layers=(), places=None):
        self.sizes = sizes  # called with an epoch, a number of ranks and a rank: microbatches of each shard
        self.dp_size = dp_size
        self.layers = layers
        self.places = places or [START] * dp_size

    def pieces(self, epoch, rank):
        dealt = deal(epoch, self.layers, self.dp_size, lambda size, other: len(self.sizes(epoch, size, other)))
        if dealt is None:
            num_shards = len(self.sizes(epoch, self.dp_size, rank))
            return self.dp_size, [Piece(rank, index, 0) for index in range(num_shards)]
        return dealt.dp_size, dealt.pieces[rank]

    def step(self, rank):
        """Deliver a rank's next microbatch, or pass a shard or an epoch that has none; return what was delivered."""
        place = self.places[rank]
        size, pieces = self.pieces(place.epoch, rank)
        if place.shard == len(pieces):
            self.places[rank] = place.after_epoch()
            return None
        piece = pieces[place.shard]
        num_left = self.sizes(place.epoch, size, piece.dp_rank)[piece.shard_index] - piece.first_microbatch
        assert num_left >= place.microbatch
        behind = Position.after_epoch if place.shard == len(pieces) - 1 else Position.after_shard
        if num_left == place.microbatch:
            self.places[rank] = behind(place)
            return None
        moved = place._replace(microbatch=place.microbatch + 1, step=place.step + 1)
        is_last = moved.microbatch == num_left
        self.places[rank] = behind(moved) if is_last else moved
        return place.epoch, size, piece.dp_rank, piece.shard_index, piece.first_microbatch + place.microbatch

    def resplit(self, dp_size):
        if dp_size == self.dp_size:
            return self
        layer = []
        for rank, place in enumerate(self.places):
            while place.shard >= len(self.pieces(place.epoch, rank)[1]):
                place = place.after_epoch()  # noqa: PLW2901
            layer.append(place)
        layers, epoch = with_layer(self.layers, tuple(layer))
        begin = Position(epoch, 0, 0, max(place.step for place in layer if place.epoch == epoch))
        return World(self.sizes, dp_size, layers, [begin] * dp_size)


def finish(world, num_epochs):
    """Deliver the rest of the epochs; return it, a list for each rank."""
    found = [[] for _ in world.places]
    for rank, delivered in enumerate(found):
        while world.places[rank].epoch < num_epochs:
            delivered.append(world.step(rank))
    return [[item for item in part if item is not None] for part in found]


def check_ledger(ledger, sizes):
    """Each microbatch of an epoch is delivered once, under the split with which the epoch began."""
    assert len(set(ledger)) == len(ledger)
    for epoch in range(NUM_EPOCHS):
        delivered = {item[1:] for item in ledger if item[0] == epoch}
        begun = {item[0] for item in delivered}
        assert len(begun) <= 1
        for size in begun:
            assert delivered == {
                (size, rank, index, microbatch)
                for rank in range(size)
                for index, count in enumerate(sizes(epoch, size, rank))
                for microbatch in range(count)
            }


def split_evenly(counts):
    """An epoch's shards as blocks, as DistributedDataParallelShardSampler has them, with as many for each epoch."""

    def sizes(epoch, size, rank):
        rotated = counts[epoch % len(counts) :] + counts[: epoch % len(counts)]
        return rotated[rank * len(rotated) // size : (rank + 1) * len(rotated) // size]

    return sizes


@given(
    counts=st.lists(st.integers(0, 4), min_size=5, max_size=14).filter(any),
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=6),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_over_any_re_splits_each_microbatch_is_delivered_exactly_once(counts, worlds, data):
    sizes = split_evenly(counts)
    world, ledger = World(sizes, worlds[0]), []
    for dp_size in worlds[1:]:
        for rank, num_steps in enumerate(data.draw(st.lists(st.integers(0, 12), max_size=world.dp_size))):
            for _ in range(num_steps):
                if world.places[rank].epoch < NUM_EPOCHS:
                    ledger += [world.step(rank)]
        world = world.resplit(dp_size)
    ledger += [item for part in finish(world, NUM_EPOCHS) for item in part]
    check_ledger([item for item in ledger if item is not None], sizes)


@pytest.mark.long
def test_every_stop_of_a_small_run_and_every_second_one_is_exact():
    counts = [2, 0, 1]
    sizes = split_evenly(counts)
    for first, second, third in product((1, 2, 3), repeat=3):
        for stops in product(range(5), repeat=first):
            for more in ((0, 0, 0), (1, 0, 2), (0, 3, 1)):
                world, ledger = World(sizes, first), []
                for dp_size, steps in ((second, stops), (third, more)):
                    for rank, num_steps in zip(range(world.dp_size), steps, strict=False):
                        ledger += [world.step(rank) for _ in range(num_steps) if world.places[rank].epoch < NUM_EPOCHS]
                    world = world.resplit(dp_size)
                ledger += [item for part in finish(world, NUM_EPOCHS) for item in part]
                check_ledger([item for item in ledger if item is not None], sizes)


piece_lists = (
    st.integers(1, 6)
    .flatmap(
        lambda size: st.tuples(
            *(st.integers(0, 5).map(lambda n, r=rank: [(r, i, 0) for i in range(n)]) for rank in range(size))
        )
    )
    .map(lambda lists: [[Piece(*piece) for piece in part] for part in lists])
)


@given(left=piece_lists, between=st.integers(1, 7), dp_size=st.integers(1, 7))
def test_dealing_out_again_what_nobody_has_touched_changes_nothing(left, between, dp_size):
    once = resplit(left, dp_size)
    assert resplit(resplit(left, between), dp_size) == once
    assert sorted(piece for part in once for piece in part) == sorted(piece for part in left for piece in part)
    lengths = [len(part) for part in once]
    assert max(lengths) - min(lengths) <= 1


def test_the_order_is_by_the_place_in_a_ranks_list_and_then_by_rank():
    layer = (Position(0, 1, 2, 5), Position(0, 0, 0, 0), Position(1, 0, 0, 0))
    dealt = deal(0, (layer,), 2, lambda size, rank: size)
    assert dealt.dp_size == 3
    order = [Piece(0, 1, 2), Piece(1, 0, 0), Piece(0, 2, 0), Piece(1, 1, 0), Piece(1, 2, 0)]
    assert dealt.pieces == [order[0::2], order[1::2]]


def test_an_epoch_of_which_nothing_was_delivered_is_planned_afresh():
    layer = (Position(1, 0, 1, 1), Position(2, 0, 0, 0))
    asked = []
    assert deal(2, (layer,), 3, lambda size, rank: asked.append(rank) or 4) is None
    assert not asked
    assert deal(1, (layer,), 3, lambda size, rank: 4) is not None


def test_a_rank_that_is_an_epoch_ahead_has_delivered_a_part_of_that_epoch_too():
    layer = (Position(0, 1, 0, 2), Position(1, 1, 0, 3))
    assert deal(0, (layer,), 1, lambda size, rank: 2).pieces == [[Piece(0, 1, 0)]]
    assert deal(1, (layer,), 1, lambda size, rank: 2).pieces == [[Piece(0, 0, 0), Piece(1, 1, 0), Piece(0, 1, 0)]]


def test_layers_that_no_epoch_under_way_depends_on_are_forgotten():
    old = (Position(0, 1, 0, 2), Position(1, 0, 0, 0))
    assert with_layer((old,), (Position(1, 0, 0, 0),) * 3) == ((), 1)
    ahead = (Position(0, 1, 0, 2), Position(1, 0, 1, 1))
    assert with_layer((ahead,), (Position(1, 0, 0, 0),) * 3) == ((ahead,), 1)
    assert without_idle((ahead,), 2) == ()


def test_the_step_goes_on_from_the_largest_of_the_ranks_before_in_that_epoch_only():
    layer = (Position(4, 1, 0, 2), Position(4, 1, 3, 7), Position(5, 2, 1, 9))
    assert [first_step(epoch, (layer,)) for epoch in (3, 4, 5, 6)] == [0, 7, 0, 0]
    assert first_step(4, ()) == 0
