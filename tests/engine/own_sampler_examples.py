"""Subclasses of ShardSampler as users of the system that this one follows write them."""

import random

from fkat_data.samplers import SequenceShardSampler, ShardSampler

SHARDS = ["list-a-2", "map-b-3", "generator-c-1", "list-d-1", "map-e-4", "stream-f-3"]


class Assigned(ShardSampler):
    """A list, and the inherited loop."""

    def __init__(self):
        super().__init__()
        self.shards = list(SHARDS)


class Filled(ShardSampler):
    """A list that the base class made."""

    def __init__(self):
        super().__init__()
        for shard in SHARDS:
            self.shards.append(shard)


class Generated(ShardSampler):
    """A loop alone; neither list nor constructor."""

    def __iter__(self):
        yield from SHARDS


class Indexed(ShardSampler):
    """Its own iterator over a list, with the place and the flag that the original's samplers have."""

    def __init__(self):
        super().__init__()
        self.shards = list(SHARDS)
        self.reset = True
        self.index = -1

    def __iter__(self):
        if self.reset:
            self.index = -1
        self.reset = True
        return self

    def __next__(self):
        self.index += 1
        if self.index >= len(self.shards):
            raise StopIteration
        return self.shards[self.index]


class GloballyShuffled(Indexed):
    """Shuffles in place with python's global generator, again before each loop."""

    def __iter__(self):
        random.shuffle(self.shards)
        return super().__iter__()


class OwnlyShuffled(Assigned):
    """Shuffles in place with a generator of its own, and leaves the loop to the base class."""

    def __init__(self):
        super().__init__()
        self.random = random.Random(3)

    def __iter__(self):
        self.random.shuffle(self.shards)
        return super().__iter__()


class Counting(Assigned):
    """Counts its loops where they end, and begins each elsewhere."""

    def __init__(self):
        super().__init__()
        self.num_loops = 0

    def __iter__(self):
        yield from self.shards[self.num_loops :] + self.shards[: self.num_loops]
        self.num_loops += 1


class KnowingEpochs(Assigned):
    """Has the inherited loop over a list that its own set_epoch changes."""

    def set_epoch(self, epoch):
        self.shards = SHARDS[epoch:] + SHARDS[:epoch]


class Filtered(SequenceShardSampler):
    """Changes what a sampler of the library yields."""

    def __init__(self):
        super().__init__(["map-z-1", *SHARDS])

    def __iter__(self):
        return (shard for shard in super().__iter__() if "-z-" not in shard)


class Narrowed(SequenceShardSampler):
    """Assigns a list over the method of a sampler of the library."""

    def __init__(self):
        super().__init__(["map-z-1", *SHARDS])
        self.shards = [shard for shard in self if "-z-" not in shard]


class Pure(ShardSampler):
    """A function of the epoch."""

    def shards(self, epoch):
        return SHARDS[epoch:] + SHARDS[:epoch]


class Plain:
    """No subclass: an iterable by a generator function."""

    def __iter__(self):
        yield from SHARDS


class PlainKnowingEpochs(Plain):
    """It has another order in each epoch that it is told."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(SHARDS[self.epoch :] + SHARDS[: self.epoch])


class Remembering:
    """Draws its order from a generator of its own, whose state it saves."""

    def __init__(self):
        self.random = random.Random(5)

    def state_dict(self):
        version, internal, gauss = self.random.getstate()
        return {"version": version, "internal": list(internal), "gauss": gauss}

    def load_state_dict(self, state_dict):
        self.random.setstate((state_dict["version"], tuple(state_dict["internal"]), state_dict["gauss"]))

    def __iter__(self):
        yield from self.random.sample(SHARDS, len(SHARDS))


class StatefulIterator:
    """Its own iterator, as torchdata's are: it knows its place, and starts anew after its end."""

    def __init__(self):
        self.index = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.index == len(SHARDS):
            self.index = 0
            raise StopIteration
        self.index += 1
        return SHARDS[self.index - 1]

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state_dict):
        self.index = state_dict["index"]


class RememberingInPlace:
    """Its state is one list that changes as it goes on, and that a load replaces by the list that it is given."""

    def __init__(self):
        self.state = {"turns": [0]}

    def __iter__(self):
        self.state["turns"][0] += 1
        turn = self.state["turns"][0] % len(SHARDS)
        yield from SHARDS[turn:] + SHARDS[:turn]
        self.state["turns"][0] += 1

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state = state_dict


#: Those with one order, those that have another in each epoch, and those that are no subclasses.
FIXED = [Assigned, Filled, Generated, Indexed, Filtered, Narrowed]
CHANGING = [GloballyShuffled, OwnlyShuffled, Counting, KnowingEpochs, Pure]
OTHERS = [
    Plain,
    PlainKnowingEpochs,
    Remembering,
    StatefulIterator,
    RememberingInPlace,
    lambda: tuple(SHARDS),
]
