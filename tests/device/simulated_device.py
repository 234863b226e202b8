"""A device that is simulated: ``torch.device("simulated")``, with streams, events and an allocator that behave as CUDA's.

What a program may rely on there holds here, and nothing else:

- What is put on a stream is done in its order, after the events that the stream was told to wait for, and at no
  certain time. Here ``schedule`` says when: a random number generator, so that Hypothesis may search for an order.
- A copy out of page-locked memory reads it when the copy is done, by its address alone: nobody keeps it meanwhile.
  Small copies out of other memory take the bytes at once; for larger ones the host waits.
- Memory is given, as soon as its last tensor is gone, to whoever asks for as much on the stream that it was made on,
  though work on it may not be done yet. ``record_stream`` has it wait for what another stream was told until then.

A kernel is a function of NumPy arrays (``launch``). There is one device in a process.
"""

import contextlib
import ctypes
import random
import time
import types
import weakref
from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np
import torch
from torch.utils import backend_registration

SMALL_BYTES = 1 << 16
GRAIN_BYTES = 512


class Marker:
    """A point of a stream: passed when everything before it is done, at a time in ms."""

    def __init__(self):
        self.passed_at = None


class Event:
    def __init__(self, enable_timing=False):
        self.marker = Marker()
        self.marker.passed_at = 0

    def record(self, stream):
        self.marker = stream.mark()

    def query(self):
        assert not device.is_capturing, "to ask an event spoils the capture of a graph"
        device.go_on()
        return self.marker.passed_at is not None

    def synchronize(self):
        device.run_until(self.marker)

    def elapsed_time(self, end):
        return end.marker.passed_at - self.marker.passed_at


class Stream:
    def __init__(self, device=None):
        self.waiting = deque()

    def put(self, work):
        if self not in device.streams:
            device.streams.append(self)
        self.waiting.append(work)
        device.go_on()

    def mark(self):
        marker = Marker()
        self.put(marker)
        return marker

    def wait_event(self, event):
        self.put(Wait(event.marker))


class Wait(NamedTuple):
    marker: Marker


class Sleep:
    """A kernel that does nothing, for so many steps."""

    def __init__(self, num_steps):
        self.left = num_steps


class Read:
    """A copy out of the host's memory that is not done yet."""

    def __init__(self, address, source):
        self.address = address
        self.source = source


class Block:
    """A piece of the device's memory."""

    def __init__(self, size_bytes, stream):
        self.content = bytearray(b"\xa5" * size_bytes)
        self.stream = stream
        self.used_by = set()

    def array(self, dtype, count):
        return np.frombuffer(self.content, dtype, count)


class Device:
    """The state of the device: its streams, its memory, and when it goes on."""

    def __init__(self):
        self.reset()

    def reset(self, schedule=None, eagerness=0.5):
        """Forget all work and all memory.

        Args:
            schedule: Says when the device goes on, and which stream does.
            eagerness: How probable it is that it goes on, whenever it has a chance.
        """
        self.schedule = schedule or random.Random(0)
        self.eagerness = eagerness
        self.streams = []
        self.current = Stream()
        self.held = []  # streams that go on only when the host waits
        self.num_steps = self.num_host_waits = self.num_reused = 0
        self.copy_s = 0.0  # what a copy takes at least
        self.is_capturing = False
        self.num_faults = 0  # memory that was taken away while it was being read
        self.free = defaultdict(list)
        self.in_use_still = []
        self.locked = {}
        self.reads = []

    # Work.

    def go_on(self):
        """Do as much as the schedule likes."""
        while self.schedule.random() < self.eagerness and self.step(set(self.streams) - set(self.held)):
            pass

    def step(self, streams):
        """Do one thing on one of the streams; return False if all of them are through, or wait for others."""
        able = [one for one in self.streams if one in streams and one.waiting and not is_blocked(one.waiting[0])]
        if not able:
            return False
        stream = self.schedule.choice(able)
        if not stream.waiting or is_blocked(stream.waiting[0]):
            return True  # garbage was collected, and a finalizer has waited for the device meanwhile
        work = stream.waiting[0]
        self.num_steps += 1
        if isinstance(work, Sleep) and work.left:
            work.left -= 1
            return True
        stream.waiting.popleft()
        if isinstance(work, Marker):
            work.passed_at = 1e3 * time.perf_counter()
        elif callable(work):
            work()
        return True

    def run_until(self, marker):
        """Have the host wait for a marker."""
        if marker.passed_at is None:
            self.num_host_waits += 1
        while marker.passed_at is None:
            assert self.step(self.streams), "the host waits for what nobody will do"

    def synchronize(self):
        for stream in list(self.streams):
            self.run_until(stream.mark())

    # Memory.

    def allocate(self, size_bytes):
        size_bytes = -(-max(size_bytes, 1) // GRAIN_BYTES) * GRAIN_BYTES
        for block, markers in list(self.in_use_still):
            if all(marker.passed_at is not None for marker in markers):
                self.in_use_still.remove((block, markers))
                self.free[block.stream, len(block.content)].append(block)
        pool = self.free[self.current, size_bytes]
        self.num_reused += bool(pool)
        return pool.pop() if pool else Block(size_bytes, self.current)

    def release(self, block):
        if block.stream not in self.streams:  # of a time before the last reset
            return
        markers = [stream.mark() for stream in block.used_by]
        block.used_by = set()
        if markers:
            self.in_use_still.append((block, markers))
        else:
            self.free[block.stream, len(block.content)].append(block)

    def is_locked(self, address, size_bytes):
        return any(start <= address and address + size_bytes <= start + size for start, size in self.locked.items())


def is_blocked(work):
    return isinstance(work, Wait) and work.marker.passed_at is None


class Runtime:
    """What page-locks, with the functions of CUDA's runtime."""

    def cudaHostRegister(self, address, size_bytes, flags):  # noqa: N802
        assert address not in device.locked
        device.locked[address] = size_bytes
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        end = address + device.locked.pop(address, 0)  # 0: of a time before the last reset
        for read in [read for read in device.reads if address <= read.address < end]:
            device.num_faults += 1
            device.reads.remove(read)
        return 0


class Memory:
    """A tensor's hold on its block."""

    def __init__(self, size_bytes):
        self.block = device.allocate(size_bytes)
        weakref.finalize(self, device.release, self.block).atexit = False


class SimulatedTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, size, dtype):
        tensor = torch._C._acc.create_empty_tensor(list(size), dtype or torch.get_default_dtype())
        tensor.__class__ = cls
        return tensor

    def __init__(self, size, dtype):
        self.memory = Memory(self.numel() * self.itemsize)

    def record_stream(self, stream):
        if stream is not self.memory.block.stream:
            self.memory.block.used_by.add(stream)

    def array(self):
        """Return a look at its memory, which does not keep it from being given away: as a kernel's pointer."""
        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        return self.memory.block.array(dtype, self.numel())

    def data_ptr(self):
        return id(self.memory.block)


def copy(source, target, non_blocking=False):
    if isinstance(source, SimulatedTensor):
        device.run_until(device.current.mark())
        target.copy_(torch.from_numpy(source.array().copy()).reshape(target.shape))
        return target
    size_bytes = source.numel() * source.itemsize
    is_read_later = source.is_contiguous() and device.is_locked(source.data_ptr(), size_bytes)
    if not is_read_later:
        if size_bytes > SMALL_BYTES or not non_blocking:
            device.run_until(device.current.mark())
        source = source.contiguous().clone()
    destination, address = target.memory.block.content, source.data_ptr()
    read = Read(address, None if is_read_later else source)
    device.reads.append(read)

    def work():
        time.sleep(device.copy_s)
        if read in device.reads:
            ctypes.memmove((ctypes.c_char * size_bytes).from_buffer(destination), address, size_bytes)
            device.reads.remove(read)

    device.current.put(work)
    if not non_blocking:
        device.run_until(device.current.mark())
    return target


def empty(size, *_, dtype=None, **__):
    return SimulatedTensor(size, dtype)


def sleep(num_steps):
    """Have the current stream do nothing for a while."""
    device.current.put(Sleep(num_steps))


def launch(kernel, *tensors):
    """Put a kernel on the current stream: a function of the tensors' memory, as it is when the kernel runs."""
    arrays = [tensor.array() for tensor in tensors]
    device.current.put(lambda: kernel(*arrays))


@contextlib.contextmanager
def stream_context(stream):
    before, device.current = device.current, stream
    try:
        yield stream
    finally:
        device.current = before


device = Device()

module = types.ModuleType("torch.simulated")
module.Stream, module.Event, module.stream = Stream, Event, stream_context
module.current_stream = lambda of=None: device.current
module.current_device = lambda: 0
module.device_count = lambda: 1
module.is_current_stream_capturing = lambda: device.is_capturing
module.is_available = module.is_initialized = lambda: True
module._is_in_bad_fork = lambda: False
module.manual_seed_all = lambda seed: None


def can_install():
    """Return whether torch can be taught a device in Python, and has no other accelerator beside it."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend") and not torch.cuda.is_available()


def install():
    """Let torch know the device; for the rest of the process."""
    if getattr(torch, "simulated", None) is None:
        backend_registration._setup_privateuseone_for_python_backend("simulated", backend_module=module)
        torch.library.impl("aten::empty.memory_format", "privateuseone")(empty)
        torch.library.impl("aten::empty_strided", "privateuseone")(empty)
        torch.library.impl("aten::_copy_from", "privateuseone")(copy)
