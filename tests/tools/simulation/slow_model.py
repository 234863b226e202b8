"""Small runs, and the model once more: slow, and written down as it is thought of, with no cleverness to be wrong."""

import math

import numpy as np

from fkat_data.streaming.reading.read_ahead import ReadAhead
from fkat_data.tools.simulation.needs import EpochNeeds, StepGroup
from fkat_data.tools.simulation.setup import Setup, ShardCosts

SETUP = {"step_s": 1.0, "bandwidth_bytes_per_s": 100.0, "predownload": 0, "num_steps": 1, "num_threads": 2}


def setup(**changes):
    return Setup(**SETUP | changes)


def costs(*sizes):
    return [ShardCosts(size, size) for size in sizes]


def needs(*parts, num_steps=1, num_samples=1, epoch=0):
    """An epoch: for each part, the shards of each rank."""
    return EpochNeeds(
        epoch,
        tuple(StepGroup(num_steps, num_samples, [np.array(shards, np.int64) for shards in part]) for part in parts),
    )


class _Ahead(ReadAhead):
    """The real read-ahead's idea of how far to look; what it wants is only listed."""

    def __init__(self):
        super().__init__(lambda shard, wait: None, 1)
        self.wanted = []

        self.first = set()

    def want(self, shards, *, is_first=False):
        self.wanted += shards
        if is_first:
            self.first.update(shards)


class _Rank:
    def __init__(self, node, number, epoch, predownload):
        self.node, self.number = node, number
        self.queue, self.left, self.in_work, self.ready, self.open = [], set(), set(), set(), set()
        self.num_busy = 0
        self.unread = []
        self.ahead = _Ahead()
        self.parts = self.ahead.follow(
            epoch.parts, lambda part: (part.shards[number].tolist(), part.num_samples), predownload
        )


class _Fetch:
    def __init__(self, node, shard, latency_s, num_bytes, rank, is_thread):
        self.node, self.shard, self.latency_s, self.num_bytes = node, shard, latency_s, float(num_bytes)
        self.rank, self.is_thread, self.others = rank, is_thread, []


class SlowModel:
    """Ranks that read for themselves, one epoch, a cache that keeps everything."""

    def __init__(self, epoch, costs, setup):
        self.epoch, self.costs, self.setup = epoch, costs, setup
        self.ranks = [
            _Rank(number // setup.ranks_per_node, number, epoch, setup.predownload) for number in range(setup.num_ranks)
        ]
        self.there = [set() for _ in range(setup.num_nodes)]
        self.fetches = []
        self.now_s = 0.0

    def waits_s(self):
        found = []
        for part in self.epoch.parts:
            began_s = self.now_s
            for rank in self.ranks:
                next(rank.parts)
                for shard in rank.ahead.wanted:
                    if shard not in rank.open | rank.in_work | rank.left | rank.ready and shard not in rank.queue:
                        rank.queue.append(shard)
                rank.ahead.wanted.clear()
            for _ in range(99):
                for rank in self.ranks:
                    self._start(rank, 1)
            for rank in self.ranks:
                rank.unread = sorted(part.shards[rank.number].tolist())
                self._read(rank)
            while any(rank.unread for rank in self.ranks):
                self._go_on(math.inf)
            found += [self.now_s - began_s] + [0.0] * (part.num_steps - 1)
            self._go_on_until(self.now_s + part.num_steps * self.setup.step_s)
        return found

    def _start(self, rank, most=99):
        while rank.queue and rank.num_busy < self.setup.num_threads and most:
            most -= 1
            if rank.queue[0] not in rank.ahead.first and rank.ahead.first & rank.in_work:
                return
            shard = rank.queue.pop(0)
            fetch = self._fetch_of(rank.node, shard)
            if shard in self.there[rank.node]:
                rank.ready.add(shard)
            elif fetch is not None:
                rank.left.add(shard)
                fetch.others.append(rank)
            else:
                rank.in_work.add(shard)
                rank.num_busy += 1
                self._begin(rank, shard, is_thread=True)

    def _begin(self, rank, shard, *, is_thread):
        size = self.costs[shard].fetched_bytes
        self.fetches.append(_Fetch(rank.node, shard, self.setup.latency_s, size, rank, is_thread))

    def _fetch_of(self, node, shard):
        return next((fetch for fetch in self.fetches if (fetch.node, fetch.shard) == (node, shard)), None)

    def _read(self, rank):
        while rank.unread:
            shard = rank.unread[0]
            if shard not in rank.open | rank.ready | rank.in_work:
                # It is asked for here, and no thread looks at it any more.
                rank.left.discard(shard)
                if shard in rank.queue:
                    rank.queue.remove(shard)
                if shard not in self.there[rank.node] and self._fetch_of(rank.node, shard) is None:
                    self._begin(rank, shard, is_thread=False)
            if shard in rank.in_work or (shard not in rank.open | rank.ready | self.there[rank.node]):
                return
            rank.ready.discard(shard)
            rank.open.add(shard)
            rank.unread.pop(0)

    def _rates(self):
        moving = [fetch for fetch in self.fetches if fetch.latency_s <= 0]
        rates = dict.fromkeys(moving, 0.0)
        by_node = [[fetch for fetch in moving if fetch.node == node] for node in range(self.setup.num_nodes)]
        limits = [(self.setup.store_bytes_per_s, moving)]
        limits += [(self.setup.bandwidth_bytes_per_s, those) for those in by_node]
        limits += [(self.setup.connection_bytes_per_s, [fetch]) for fetch in moving]
        # All rates grow together until a limit is met; those that it holds for stay.
        growing = set(moving)
        while growing:
            room = math.inf
            for limit, those in limits:
                if growing & set(those):
                    left = limit - sum(rates[fetch] for fetch in those)
                    room = min(room, left / len(growing & set(those)))
            for fetch in growing:
                rates[fetch] += room
            for limit, those in limits:
                if sum(rates[fetch] for fetch in those) >= limit * (1 - 1e-12):
                    growing -= set(those)
        return rates

    def _go_on_until(self, until_s):
        while self._go_on(until_s):
            pass
        self.now_s = until_s

    def _go_on(self, until_s):
        """Go on to whatever happens next, if it happens by then."""
        rates = self._rates()
        left_s = [fetch.latency_s if fetch.latency_s > 0 else fetch.num_bytes / rates[fetch] for fetch in self.fetches]
        if not left_s or self.now_s + min(left_s) > until_s:
            for fetch in self.fetches:
                self._pass(fetch, until_s - self.now_s, rates)
            return False
        step_s = min(left_s)
        ended = self.fetches[left_s.index(step_s)]
        is_answered = ended.latency_s > 0
        for fetch in self.fetches:
            self._pass(fetch, step_s, rates)
        self.now_s += step_s
        if is_answered:
            ended.latency_s = 0.0
            return True
        self.fetches.remove(ended)
        self.there[ended.node].add(ended.shard)
        if ended.is_thread:
            ended.rank.num_busy -= 1
            ended.rank.in_work.discard(ended.shard)
            ended.rank.ready.add(ended.shard)
        self._read(ended.rank)
        self._start(ended.rank)
        for rank in self.ranks:
            self._read(rank)
        for rank in ended.others:
            if ended.shard in rank.left:
                rank.left.remove(ended.shard)
                rank.queue.append(ended.shard)
                self._start(rank)
        return True

    def _pass(self, fetch, seconds, rates):
        if fetch.latency_s > 0:
            fetch.latency_s -= seconds
        else:
            fetch.num_bytes -= rates[fetch] * seconds
