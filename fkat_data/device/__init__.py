"""Microbatches onto the device that the caller computes on.

The loader's delivery asks ``mover_for`` for the mover of its device, and has it begin a microbatch ahead of the caller's
``next()`` and finish it there. An ``AcceleratorMover`` issues copies on a side stream by its ``StreamCopier`` and keeps
their sources until they were read; ``page_lock`` has the pages of segments locked, where there are workers.
"""

from fkat_data.device.accelerator import AcceleratorMover, mover_for
from fkat_data.device.copier import StreamCopier, copier_for
from fkat_data.device.host import HostMover, Mover, map_tensors

__all__ = ["AcceleratorMover", "HostMover", "Mover", "StreamCopier", "copier_for", "map_tensors", "mover_for"]
