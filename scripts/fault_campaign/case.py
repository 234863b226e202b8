"""One case of the campaign: its data, its trainer and its strikes, drawn from a seed."""

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

KINDS = ("map", "iterable", "list", "generator", "nested")
_LARGEST_MICROBATCH_BYTES = 300 << 10


class Strike(NamedTuple):
    """One signal, sent to one victim or to all.

    Attributes:
        victim: "worker", "trainer", "grandchild" (a nested DataLoader's worker) or "all".
        signal: "KILL", "SEGV", "ABRT", "TERM", "INT", or "STOP", which is followed by CONT.
        after_microbatches: Microbatches that the trainer delivers before the strike.
        delay_s: Seconds between the last of them and the strike.
        choice: From 0 to 1: selects one of the possible victims.
        stop_s: Seconds between STOP and CONT.
    """

    victim: str
    signal: str
    after_microbatches: int
    delay_s: float
    choice: float
    stop_s: float


class Life(NamedTuple):
    """What may differ between two lives of one trainer.

    Attributes:
        num_shard_prefetches: The loader's argument.
        num_microbatch_prefetches: The loader's argument.
        rewinds: Whether the trainer goes back to its checkpoint after a failure; otherwise it ends.
    """

    num_shard_prefetches: int
    num_microbatch_prefetches: int
    rewinds: bool


class Case(NamedTuple):
    """One trainer's run and its strikes.

    Attributes:
        seed: The loader's seed.
        shards: Names, ``kind-name-count``.
        shuffles_shards: Whether each epoch has its own order of shards.
        shuffles: Whether map-style shards shuffle their samples.
        batch_size: Samples in a microbatch.
        drop_last: Whether to drop a smaller last batch.
        sample_numbers: Numbers of 8 bytes in a sample.
        jitter_s: The longest time that a sample takes; drawn at random.
        pause_s: The time that the trainer computes on each microbatch.
        num_epochs: Epochs.
        checkpoint_every: Microbatches between two checkpoints.
        max_worker_restarts: The loader's argument.
        zero_copy: The loader's argument.
        memory_limit_bytes: The loader's argument.
        streams: The folder of the datasets that shards of streams read; "" if there are none.
        lives: The settings of the trainer's lives, in turn.
        strikes: The strikes in order; those left when the trainer finishes do not happen.
        start_method: The loader's argument.
    """

    seed: int
    shards: list[str]
    shuffles_shards: bool
    shuffles: bool
    batch_size: int
    drop_last: bool
    sample_numbers: int
    jitter_s: float
    pause_s: float
    num_epochs: int
    checkpoint_every: int
    max_worker_restarts: int
    zero_copy: bool
    memory_limit_bytes: int | None
    streams: str
    lives: list[Life]
    strikes: list[Strike]
    start_method: Literal["fork"] | None


def draw(seed: int, number: int, kinds: Sequence[str] = KINDS, streams: str = "") -> Case:
    """Return case ``number`` of the campaign with this seed.

    Args:
        seed: The campaign's seed.
        number: The case's number.
        kinds: The kinds of shards.
        streams: The folder of the datasets that shards of streams read.
    """
    dice = random.Random(f"{seed}/{number}")
    shards = [
        f"{dice.choice(kinds)}-{place}-{dice.choice((0, dice.randint(1, 9), dice.randint(1, 9), dice.randint(1, 9)))}"
        for place in range(dice.randint(1, 7))
    ]
    batch_size = dice.randint(1, 4)
    largest = _LARGEST_MICROBATCH_BYTES // 8 // batch_size
    return Case(
        seed=dice.randrange(1 << 32),
        shards=shards,
        shuffles_shards=dice.random() < 0.5,
        shuffles=dice.random() < 0.5,
        batch_size=batch_size,
        drop_last=dice.random() < 0.3,
        sample_numbers=dice.choice((1, dice.randint(1, 300), dice.randint(1, largest))),
        jitter_s=dice.choice((0.0, 0.0, dice.uniform(0, 0.005))),
        pause_s=dice.choice((0.0, 0.01, 0.03, 0.06)),
        num_epochs=dice.randint(1, 3),
        checkpoint_every=dice.randint(1, 7),
        max_worker_restarts=dice.choice((0, 50, 50)),
        zero_copy=dice.random() < 0.8,
        memory_limit_bytes=dice.choice((None, 4 << 20)),
        streams=streams,
        lives=[Life(dice.randint(0, 4), dice.randint(-1, 3), dice.random() < 0.6) for _ in range(3)],
        strikes=[_strike(dice) for _ in range(dice.randint(4, 14))],
        start_method=dice.choice((None, None, "fork")),
    )


def _strike(dice: random.Random) -> Strike:
    # Half come shortly after a microbatch, half at any time, often while processes start.
    follows = dice.random() < 0.5
    return Strike(
        victim=dice.choices(("worker", "trainer", "grandchild", "all"), (60, 15, 20, 5))[0],
        signal=dice.choices(("KILL", "SEGV", "ABRT", "TERM", "INT", "STOP"), (50, 10, 10, 10, 10, 10))[0],
        after_microbatches=dice.randint(1, 3) if follows else 0,
        delay_s=dice.uniform(0, 0.04) if follows else dice.uniform(0, 2.0),
        choice=dice.random(),
        stop_s=dice.uniform(0, 0.6),
    )
