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


#: Those with one order, and those that have another in each epoch.
FIXED = [Assigned, Filled, Generated, Indexed, Filtered, Narrowed]
CHANGING = [GloballyShuffled, OwnlyShuffled, Counting, KnowingEpochs]
