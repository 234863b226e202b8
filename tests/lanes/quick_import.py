"""Lets a program of a test import torch and the like in two thirds of the time, end included.

No garbage is looked for while they are imported, and at the end of the program not among what they have made, unless
that counts what it leaves behind. Nothing else differs: what the program makes itself is collected as ever.
"""

import atexit
import gc
import importlib.machinery
import sys

__all__ = []

_LARGE = {"torch", "torch._dynamo", "lightning", "transformers", "accelerate", "datasets", "ray", "dask"}


class _Finder:
    """Finds the large ones, once each."""

    @staticmethod
    def find_spec(name, path, _target=None):
        if name not in _LARGE:
            return None
        _LARGE.remove(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = lambda module: _execute(spec.loader, module)
        return spec


def _execute(loader, module):
    del loader.exec_module
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        loader.exec_module(module)
    finally:
        gc.freeze()
        if is_enabled:
            gc.enable()


def _end():
    # The library of triton, which torch's CUDA builds bring, reports on stderr whatever of its own is not collected.
    if "triton" in sys.modules:
        gc.unfreeze()


sys.meta_path.insert(0, _Finder)
atexit.register(_end)
