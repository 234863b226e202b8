"""Random streams: every random draw of a dataset is a function of its position in the order.

Before each microbatch, the worker seeds the three global generators (python, numpy, torch on the CPU) from
(seed, data-parallel rank, epoch, shard, microbatch); a strand of an iterable dataset counts as a shard. So the draws depend neither on the number of workers nor on the
prefetch depth or the mode. A state holds no generator's state, and a resume skips delivered microbatches without
producing them.
"""

import ctypes
import hashlib
import random
import struct
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch

# Draws for the whole shard: opening it, and the order of its batches.
_OPENING = 2**64 - 1
_BATCH_ORDER = 2**63
_NUMBER = struct.Struct("<Q")
# As numpy's own types leave two of its functions out.
_numpy_random: Any = np.random
# What random.seed does with an integer, without its checks.
_python = random.random.__self__
_seed_python = super(random.Random, _python).seed


@dataclass(frozen=True)
class ShardRng:
    """The random numbers of one shard in one epoch on one data-parallel rank.

    Attributes:
        key: 32 bytes that identify them.
    """

    key: bytes

    @classmethod
    def of(cls, seed: int, dp_rank: int, epoch: int, shard_index: int) -> "ShardRng":
        """Return those of the shard at an index of the order; ranks of equal ``dp_rank`` share them."""
        name = f"{seed}/{dp_rank}/{epoch}/{shard_index}".encode()
        return cls(hashlib.blake2b(name, digest_size=32, person=b"fkat_data stream").digest())

    def seed_of(self, index: int) -> int:
        """Return the 64-bit seed at an index; microbatch *i* uses index *i*."""
        hashed = self._keyed.copy()
        hashed.update(_NUMBER.pack(index))
        return _NUMBER.unpack(hashed.digest())[0]

    @cached_property
    def _keyed(self) -> "hashlib.blake2b":
        return hashlib.blake2b(digest_size=8, key=self.key)

    def seed_opening(self) -> None:
        """Seed the global generators before the shard is opened."""
        seed_generators(self.seed_of(_OPENING))

    def seed_batch_order(self, chunk: int) -> None:
        """Seed the global generators before a chunk of the shard's index batches is drawn."""
        seed_generators(self.seed_of(_BATCH_ORDER + chunk))

    def seed_microbatch(self, index: int) -> None:
        """Seed the global generators before the microbatch at ``index`` is produced."""
        seed_generators(self.seed_of(index))


# ``torch.initial_seed()`` as an item is collated to int64; the CPU's generator draws by the lower 32 bits.
_LARGEST_INT64 = (1 << 63) - 1


def seed_generators(seed: int) -> None:
    """Seed the global generators, where production uses them in this thread, and those of items.

    Args:
        seed: From 0 to 2**64 - 1.
    """
    if _here.seeds_globals:
        seed_global_generators(seed)
    enter_rng_scope(seed)


@contextmanager
def seeding_nothing() -> Generator[None]:
    """Let production in this thread leave the global generators alone in the block: other threads use them.

    What it makes may draw from ``item_generators`` alone.
    """
    before, _here.seeds_globals = _here.seeds_globals, False
    try:
        yield
    finally:
        _here.seeds_globals = before


def shares_generators() -> bool:
    """Return whether the global generators are other threads', too, so that production in this one leaves them alone."""
    return not _here.seeds_globals


def undoing_draws() -> Callable[[], object]:
    """Return what puts the global generators back, where production uses them in this thread."""
    return partial(_install, _states()) if _here.seeds_globals else int


def seed_global_generators(seed: int) -> None:
    """Seed python's, numpy's and torch's global CPU generators.

    It takes 6 µs, most of it for python's, which no other way makes faster: its state is computed word by word.
    ``torch.manual_seed`` alone takes 76 µs, because it also seeds every accelerator.

    Args:
        seed: From 0 to 2**64 - 1.
    """
    _seed_python(seed)
    vars(_python)["gauss_next"] = None
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & _LARGEST_INT64)
    if _initial_seed:
        _report_initial_seed(torch.default_generator, _initial_seed[0])


def report_initial_seed(seed: int) -> None:
    """Let ``torch.initial_seed()`` return this seed from now on, whatever torch's global generator is seeded with.

    Nothing changes where torch's generators do not keep that number apart from what they draw.

    Args:
        seed: From 0 to 2**64 - 1.
    """
    scratch = torch.Generator().manual_seed(1)
    _report_initial_seed(scratch, seed)
    is_apart = torch.rand(8, generator=scratch).equal(torch.rand(8, generator=torch.Generator().manual_seed(1)))
    if is_apart and scratch.initial_seed() == seed:
        _initial_seed[:] = [seed]


def _report_initial_seed(generator: torch.Generator, seed: int) -> None:
    state = generator.get_state()
    state.numpy()[:8].view(np.uint64)[0] = seed
    generator.set_state(state)


# Of 2**31 seeds that are drawn, one is smaller.
_SMALLEST_DRAWN = 1 << 32
# What ``torch.initial_seed()`` returns in this process, if not that seed.
_initial_seed: list[int] = []


def worker_base_seed(seed: int, dp_rank: int, epoch: int) -> int:
    """Return what the seeds of an epoch's workers count on from: that of worker *i* is ``base + i``, as torch's are.

    A loader without ``seed=`` has drawn as its seed what torch's loader draws as this base in its first epoch, so that a
    program finds the same seeds there. A seed that a person has chosen is small, and torch has no counterpart of it.

    Args:
        seed: The loader's.
        dp_rank: The loader's data-parallel rank.
        epoch: The epoch.

    Returns:
        A number from 0 to 2**63 - 1.
    """
    if epoch == dp_rank == 0 and seed >= _SMALLEST_DRAWN:
        return seed
    name = f"{seed}/{dp_rank}/{epoch}".encode()
    digest = hashlib.blake2b(name, digest_size=8, person=b"fkat_data worker").digest()
    return int.from_bytes(digest, "little") >> 1


class preserved_generators:  # noqa: N801 - a context, as those of contextlib
    """Restore the global generators and torch's number of threads at the end of the block.

    Wraps production in the caller's own thread. The block uses one torch thread, as a worker does: a parallel
    reduction adds in another order, and both modes must yield the same bits.

    Python may be interrupted between a block and its ``__exit__``. So a caller that may be interrupted calls ``restore``
    once more in a ``finally`` around the block.

    Args:
        where_shared: Restore the generators also in a thread that shares them with the program. Else they stay as the
            block leaves them there: the program may draw meanwhile, and the worker sees that the block has drawn.
    """

    def __init__(self, *, where_shared: bool = False) -> None:
        self._where_shared = where_shared
        self._states: tuple[Any, ...] | None = None

    def __enter__(self) -> None:
        is_kept = self._where_shared or _here.seeds_globals
        kept = _KeptNumpy() if is_kept else None
        generators = (random.getstate(), kept, torch.default_generator.get_state()) if is_kept else None
        self._states = generators, torch.get_num_threads(), _here.scope
        if kept is not None:
            kept.forget_normal()
        torch.set_num_threads(1)

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore what the block has begun with, if that was not done."""
        if self._states is None:
            return
        generators, num_threads, scope = self._states
        _here.scope = scope
        torch.set_num_threads(num_threads)
        if generators is not None:
            python_state, kept, torch_state = generators
            torch.default_generator.set_state(torch_state)
            kept.restore()
            random.setstate(python_state)
        self._states = None


class _KeptNumpy:
    """The state of numpy's global generator, copied where it lies in memory: 2 µs instead of 90.

    It has two parts: the words of the bit generator, and the normal of a pair that was drawn and not given yet. Nothing
    tells whether there is such a normal but to draw one, which then moves no word.
    """

    def __init__(self) -> None:
        self._words = _numpy_words()
        self._whole = np.random.get_state() if self._words is None else None
        self._generator = _numpy_random.get_bit_generator()
        self._kept = b"" if self._words is None else self._words.raw
        # The normal, and whether it was of a pair.
        self._drawn: list[Any] = []

    def forget_normal(self) -> None:
        """Keep the normal that was not given yet, if there is one: seeding would drop it."""
        if self._words is not None:
            # One call draws and keeps it: an interruption comes before both, or after both.
            self._drawn.extend(map(np.random.standard_normal, (None,)))
            self._settle()

    def _settle(self) -> None:
        if len(self._drawn) == 1:
            self._drawn.append(self._words.raw == self._kept)
        self._words.raw = self._kept

    def restore(self) -> None:
        if self._whole is not None:
            np.random.set_state(self._whole)
        elif self._drawn:
            self._settle()
            _numpy_random.set_bit_generator(self._generator)  # forgets the normal that the block has left
            if self._drawn[1]:
                kind, words, index, *_ = cast("tuple[Any, ...]", np.random.get_state())
                np.random.set_state((kind, words, index, 1, self._drawn[0]))


def _numpy_words() -> Any:
    """Return the memory of numpy's global bit generator; None if it is not laid out as it has been since numpy 1.17."""
    generator = _numpy_random.get_bit_generator()
    if _numpy_memory[0] is not generator:
        memory = None
        if type(generator) is np.random.MT19937:
            _, words, index, *_ = cast("tuple[Any, ...]", np.random.get_state())
            memory = (ctypes.c_char * (words.nbytes + 4)).from_address(generator.ctypes.state_address)
            if memory.raw != words.tobytes() + int(index).to_bytes(4, sys.byteorder):
                memory = None
        _numpy_memory[:] = generator, memory
    return _numpy_memory[1]


# The generator, and where its state lies.
_numpy_memory: list[Any] = [None, None]


def generator_states() -> tuple[object, object, object]:
    """Return the states of python's, numpy's and torch's global CPU generators, to be compared with later ones.

    Whatever is drawn after the generators were seeded makes the next states other ones.
    """
    words = _numpy_words()
    numpy_state = str(np.random.get_state(legacy=False)) if words is None else words.raw
    return random.getstate(), numpy_state, torch.default_generator.get_state().numpy().tobytes()


class ItemGenerators:
    """Random generators of one scope (an item, or a microbatch), each made when it is first asked for.

    Args:
        seed: Seeds all three, from 0 to 2**64 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def python(self) -> random.Random:
        """A ``random.Random``."""
        return random.Random(self._seed)  # noqa: S311 - for data, not for secrets

    @cached_property
    def numpy(self) -> np.random.Generator:
        """A ``numpy.random.Generator``."""
        return np.random.default_rng(self._seed)

    @cached_property
    def torch(self) -> torch.Generator:
        """A ``torch.Generator`` of the CPU."""
        return torch.Generator().manual_seed(self._seed & _LARGEST_INT64)


def item_generators() -> ItemGenerators:
    """Return the random generators of the item that a dataset's ``__getitem__`` is making.

    What they draw follows from the microbatch's random stream and the item's position in the microbatch alone: it is
    the same for any number of workers, in threads, in processes and without, and after a resume. All calls for
    one item return the same object.

    The samples of a ``StreamingDataset`` have streams of their own, with or without a ``ShardedDataLoader``: what its
    ``transform``, or a subclass's ``__getitem__``, draws follows from the seed of the shuffle, the epoch and the
    sample's index in the epoch's order.

    Where the items of a microbatch are not made one by one (``__getitems__``, ``batch_size=None``, an iterable
    dataset, a generator), the generators are those of the microbatch. Outside a ``ShardedDataLoader``'s production,
    each call returns others, seeded from torch's global generator: ``torch.manual_seed`` repeats them.
    """
    scope = _here.scope
    if scope is None:
        return ItemGenerators(int(torch.randint(2**63 - 1, (), device="cpu").item()))
    if _here.made_for is not scope:
        seed, position = scope
        if position >= 0:
            key = struct.pack("<Q", seed)
            digest = hashlib.blake2b(struct.pack("<Q", position), digest_size=8, key=key, person=b"fkat_data item")
            seed = int.from_bytes(digest.digest(), "little")
        _here.made, _here.made_for = ItemGenerators(seed), scope
    return _here.made


def has_made_generators() -> bool:
    """Return whether ``item_generators`` was called in this thread since it entered its scope."""
    return _here.scope is not None and _here.made_for is _here.scope


def enter_rng_scope(seed: int | None, position: int = -1) -> None:
    """Let ``item_generators`` in this thread give the generators of a scope from now on, until it enters another one.

    Args:
        seed: The seed of the microbatch's random stream; None: there is none.
        position: The item's index in the microbatch; -1: the microbatch itself.
    """
    _here.scope = None if seed is None else (seed, position)


def call_in_rng_scope(seed: int, position: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, called in a scope; this thread then goes back to the one where it was.

    Raises:
        Exception: Whatever the function raises.
    """
    before, _here.scope = _here.scope, (seed, position)
    try:
        return function(*arguments)
    finally:
        _here.scope = before


def samples_seed(seed: int, epoch: int) -> int:
    """Return the seed, for ``enter_rng_scope``, of an epoch's random streams: one for each index in its order."""
    name = f"{seed}/{epoch}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"fkat_data sample").digest(), "little")


def leave_rng_scope() -> None:
    """Let ``item_generators`` in this thread be in no scope."""
    _here.scope = None


def microbatch_seed() -> int | None:
    """Return the seed of the random stream that this thread makes a microbatch under, or None."""
    return None if _here.scope is None else _here.scope[0]


class _Here(threading.local):
    """Where production is, in each thread."""

    scope: tuple[int, int] | None = None
    made_for: tuple[int, int] | None = None
    seeds_globals: bool = True
    made = ItemGenerators(0)


_here = _Here()


class OwnGenerators:
    """States of python's, numpy's and torch's global generators for one caller.

    Args:
        seed: What they begin with, from 0 to 2**64 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: tuple[Any, Any, Any] | None = None

    @contextmanager
    def installed(self) -> Generator[None]:
        """Use these generators in the block, from where the block before has left them; then the program's again."""
        before = _states()
        try:
            if self._states is None:
                seed_global_generators(self._seed)
            else:
                _install(self._states)
            yield
            self._states = _states()
        finally:
            _install(before)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns that draws from these generators.

        Raises:
            BaseException: Whatever the function raises.
        """
        with self.installed():
            return function(*arguments)


def next_number(generator: torch.Generator | None) -> int:
    """Return the number that an iteration draws next, without moving the generator; None: torch's global one."""
    copied = torch.Generator()
    copied.set_state((generator or torch.default_generator).get_state())
    return int(torch.empty((), dtype=torch.int64).random_(generator=copied).item())


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _install(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])
