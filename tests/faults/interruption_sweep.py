"""Raise in the caller's thread at any instruction of the package, as a signal's handler may, and go on.

A site is an instruction of the package. A sweep raises once at each site that its calls reach, in whichever call
reaches it first, and goes on with the next call as if nothing had been: sites of the recovery are met in the calls that
recover.
"""

import dis
import functools
import gc
import importlib
import inspect
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from patience import Patience

import fkat_data
from fkat_data import ShardedDataLoader
from fkat_data.worker.process import forkserver
from fkat_data.worker.process.forkserver import find_template
from fkat_data.worker.process.importer_process import end_importers

ROOT = str(Path(fkat_data.__file__).parent)
#: A generator that is dropped is closed by Python: what is raised then is lost. Handlers run at these alone, and none is
#: among the instructions that close one.
CHECKED = frozenset(
    number for name, number in dis.opmap.items() if name.startswith(("CALL", "PRECALL", "RESUME", "JUMP_BACKWARD"))
)
#: No signal's handler runs between these and the caller's next instruction.
SAFE = frozenset({dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE") if name in dis.opmap})


class Interruptions:
    """Raises at sites that were not met before.

    Args:
        error: The class of what is raised.
        share: Of the sites: 1 for all, 10 for every tenth.
        offset: Which tenth.
    """

    def __init__(self, error, share=1, offset=0):
        self.error = error
        self._share, self._offset = share, offset
        self._left = functools.cache(self._sites_of)
        self.num_raised = 0
        self.last_site = None
        self._is_armed = False
        self.swallowed = []

    def handler(self, number, frame):
        raise self.error("interrupted")

    def __enter__(self):
        self._before = signal.signal(signal.SIGUSR2, self.handler), sys.unraisablehook
        sys.unraisablehook = self._unraisable
        return self

    def _unraisable(self, unraisable):
        if isinstance(unraisable.exc_value, self.error):
            self.swallowed.append((self.last_site, repr(unraisable.object)))

    def __exit__(self, *exception):
        handler, sys.unraisablehook = self._before
        signal.signal(signal.SIGUSR2, handler)

    def call(self, function, *arguments):
        """Call a function; return what it returns, and whether it was interrupted.

        Raises:
            BaseException: What the function raises by itself.
        """
        self._is_armed = True
        error = None
        sys._getframe().f_trace_opcodes = True  # Python 3.12 asks this frame whether instructions are wanted
        sys.settrace(self._trace)
        try:
            result = function(*arguments)
        except BaseException as raised:  # noqa: BLE001 - it is looked at below
            error = raised
        finally:
            sys.settrace(None)
        was_raised = not self._is_armed
        self._is_armed = False
        if error is None:
            assert not was_raised, f"what was raised at {self.last_site} was swallowed"
            return result, False
        if type(error) is self.error and error.args == ("interrupted",):
            return None, True
        assert not was_raised, f"raised at {self.last_site}, the caller got {error!r}"
        raise error

    def _trace(self, frame, event, argument):
        code = frame.f_code
        if not self._is_armed or not code.co_filename.startswith(ROOT):
            return None
        left = self._left(code)
        if not left:  # then it runs at its own speed
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return functools.partial(self._at_instruction, left)

    def _sites_of(self, code):
        """Return the offsets of a code's sites, of the share."""
        return {
            one.offset
            for one in dis.get_instructions(code)
            if one.opcode not in SAFE
            and (one.opcode in CHECKED or not code.co_flags & inspect.CO_GENERATOR)
            # An instruction without a line only passes an exception on.
            and one.positions.lineno is not None
            and (one.offset // 2 + code.co_firstlineno) % self._share == self._offset
        }

    def _at_instruction(self, left, frame, event, argument):
        offset = frame.f_lasti
        if offset not in left or event != "opcode" or not self._is_armed:
            return frame.f_trace
        left.remove(offset)
        self._is_armed = False
        self.num_raised += 1
        code = frame.f_code
        self.last_site = f"{Path(code.co_filename).relative_to(ROOT)}:{frame.f_lineno} {code.co_qualname} +{offset}"
        return self.handler(signal.SIGUSR2, frame)


SIZES = {"a": 4, "empty": 0, "b": 6, "c": 3}
#: The second is large enough for shared memory.
NUM_ELEMENTS = (4, 20_000)


class Preempted(Exception):  # noqa: N818 - as a user may call it
    """What a handler of SIGTERM may raise."""


class Samples(torch.utils.data.Dataset):
    def __init__(self, shard):
        self.shard = shard

    def __len__(self):
        return SIZES[self.shard]

    def __getitem__(self, index):
        return microbatch_of(self.shard, index)


def microbatch_of(shard, index):
    number = 100 * list(SIZES).index(shard) + index
    return {str(size): torch.full((size,), number) for size in NUM_ELEMENTS}


def known(shard):
    return torch.utils.data.DataLoader(Samples(shard), batch_size=None)


def unknown(shard):
    for index in range(SIZES[shard]):
        yield microbatch_of(shard, index)


def number_of(microbatch):
    numbers = {int(value) for tensor in microbatch.values() for value in tensor.cpu()[[0, -1]]}
    assert len(numbers) == 1, numbers
    return numbers.pop()


EXPECTED = [100 * place + index for place, size in enumerate(SIZES.values()) for index in range(size)]


def uninterrupted(interruptions, function, *arguments, check=lambda: None):
    """Call until the call is not interrupted; check after each that was."""
    while True:
        result, is_interrupted = interruptions.call(function, *arguments)
        if not is_interrupted:
            return result
        check()


def go_through(loader, interruptions, expected, resumes_at, check, take):
    """Go through an epoch; take a state at a position, and load it again two microbatches later.

    Args:
        expected: What the epoch has.
        check: Called with the position whenever the loader must be at it: also after an interruption.
        take: Returns what is next; called with a function that calls until it is not interrupted, the iterator, and the
            position.
    """
    position, state = 0, None
    call = functools.partial(uninterrupted, interruptions, check=lambda: check(position))
    iterator = call(iter, loader)
    while position < len(expected):
        assert take(call, iterator, position) == expected[position], interruptions.last_site
        position += 1
        check(position)
        if position == resumes_at:
            state = uninterrupted(interruptions, loader.state_dict)
        if state is not None and position == resumes_at + 2:
            uninterrupted(interruptions, loader.load_state_dict, state)
            position, state, resumes_at = resumes_at, None, -1
            iterator = call(iter, loader)
    with pytest.raises(StopIteration):
        pytest.fail(f"{uninterrupted(interruptions, next, iterator)!r} after {interruptions.last_site}")


def check_epoch(loader, interruptions, epoch, resumes_at):
    def check(position):
        if position < len(EXPECTED):
            assert (loader.epoch, loader.step) == (epoch, position), interruptions.last_site
            assert loader.state_dict()["all_rank_steps"] == [position], interruptions.last_site

    def take(call, iterator, position):
        if position % 3 == 1:
            call(loader.load_batch)
        if position % 5 == 2:
            call(loader.prefetch_shards, 1)
        return number_of(call(loader.load_batch_sync) if position % 4 == 3 else call(next, iterator))

    go_through(loader, interruptions, EXPECTED, resumes_at, check, take)
    assert (loader.epoch, loader.step) == (epoch + 1, 0)


def sweep(make, interruptions, check=check_epoch, first_stop=3, num_stops=6):
    """Go through epochs until there is no instruction left at which nothing was raised."""
    with interruptions:
        loader = uninterrupted(interruptions, make)
        epoch, num_before = 0, -1
        while interruptions.num_raised > num_before:
            num_before = interruptions.num_raised
            check(loader, interruptions, epoch, resumes_at=first_stop + epoch % num_stops)
            epoch += 1
            if epoch % 3 == 0:
                uninterrupted(interruptions, loader.close)
        uninterrupted(interruptions, loader.close)
        loader.close()
        del loader
        gc.collect()
    assert not interruptions.swallowed


def sweep_templates(share):
    """Start templates for several environments, and end them; print how often was raised."""
    num_before = -1
    with Interruptions(Preempted, int(share)) as interruptions:
        while interruptions.num_raised > num_before:
            num_before = interruptions.num_raised
            for value in "ABCA":
                os.environ["OF_THE_TEMPLATE"] = value
                assert uninterrupted(interruptions, find_template).is_serving(), interruptions.last_site
            uninterrupted(interruptions, end_templates)
            wait_until(lambda: not children())
            assert not children(), interruptions.last_site
    assert not interruptions.swallowed
    print(interruptions.num_raised)


def end_templates():
    """Let the templates of this process go, which have no workers: they end."""
    templates = forkserver._registry.templates
    while templates:
        templates[-1].dismiss()
        templates.pop()


def children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def left():
    """Return the processes that are left, but for the template process that waits for the next loader."""
    end_importers()
    template = find_template()
    kept = set() if template is None else {template.pid}
    wait_until(lambda: children() <= kept)
    return sorted(children() - kept)


def wait_until(condition):
    patience = Patience()
    while not condition() and not patience.is_over():
        gc.collect()
        time.sleep(0.02)


#: How a loader works, by name.
WAYS = {
    "in process": {"multiprocessing": False},
    "one worker": {},
    "two shards at once": {"num_shard_prefetches": 2, "num_microbatch_prefetches": 2},
    "two workers a shard": {"num_workers_per_shard": 2},
    "threads": {"workers": "threads", "num_workers_per_shard": 2, "num_shard_prefetches": 2},
    "restarts and a timeline": {"max_worker_restarts": 2, "trace": "timeline.json"},
    "simulated device": {"device": "simulated"},
}

FACTORIES = {function.__name__: function for function in (known, unknown)}
#: What code that is interrupted may take for an error of its own, too.
LIKE_OWN = (TimeoutError, BlockingIOError, FileNotFoundError, ValueError, EOFError, KeyError, RuntimeError)
ERRORS = {error.__name__: error for error in (KeyboardInterrupt, Preempted, SystemExit, *LIKE_OWN)}


def main(way, factory, error, share, offset="0"):
    """Sweep in this process; print how often was raised, and which processes are left."""
    if way == "simulated device":
        simulated_device = importlib.import_module("simulated_device")
        if not simulated_device.can_install():
            print(json.dumps(None))
            return
        simulated_device.install()
    interruptions = Interruptions(ERRORS[error], int(share), int(offset))
    sweep(lambda: ShardedDataLoader(0, list(SIZES), FACTORIES[factory], **WAYS[way]), interruptions)
    print(json.dumps({"raised": interruptions.num_raised, "left": left()}))
