"""Lets a program of a test import torch in two thirds of the time, by not looking for garbage meanwhile or at the end.

Nothing else differs: what the program makes itself is collected as ever.
"""

import gc
import importlib.machinery
import sys

__all__ = []


class _Finder:
    """Finds torch, once."""

    @staticmethod
    def find_spec(name, _path, _target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is not None:
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


sys.meta_path.insert(0, _Finder)
