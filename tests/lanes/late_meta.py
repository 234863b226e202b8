"""Imports torch without what it registers for tensors that have no data, a quarter of its import, until that is used.

Programs of tests have few such tensors (of the device "meta", or fake ones). An operation on one that misses its
registration is an error, so nothing passes for that.
"""

import importlib
import importlib.util
import os
import sys
import types

__all__ = ["execute_torch", "import_before"]

_META = "torch._meta_registrations"
#: What it brings along, and nothing else of torch's import: whoever imports one of these has it imported before.
_BROUGHT = {"torch._decomp", "torch._prims", "torch._refs"}
#: What makes tensors without data.
_USING = {"torch._dynamo", "torch.distributed.tensor", "accelerate", "lightning", "transformers"}
_is_late = False


class _There:
    """Loads a module that is there already."""

    def __init__(self, spec):
        self._spec = spec

    def create_module(self, spec):
        return sys.modules[spec.name]

    def exec_module(self, module):
        module.__spec__ = self._spec


def import_before(name):
    """Import what is still missing if a module needs it; return the module's spec if that has brought it along."""
    global _is_late  # noqa: PLW0603 - once in each process
    if not _is_late or name not in _BROUGHT | _USING:
        return None
    _is_late = False
    importlib.import_module(_META)
    if name not in sys.modules:
        return None
    loader = _There(sys.modules[name].__spec__)
    sys.modules[name].__spec__ = None  # else Python would execute the module once more
    return importlib.util.spec_from_loader(name, loader)


def execute_torch(loader, torch):
    """Execute the module torch."""
    global _is_late  # noqa: PLW0603 - as above
    own_generator = os.path.join(os.path.dirname(torch.__file__), "_opaque_base.py")  # noqa: PTH118, PTH120 - in no time
    if not os.path.exists(own_generator) or not _USING.isdisjoint(sys.modules):  # noqa: PTH110 - as above
        loader.exec_module(torch)  # an older one, or one that is used at once
        return
    sys.modules[_META] = types.ModuleType(_META)
    try:
        loader.exec_module(torch)
    finally:
        del sys.modules[_META]
    del torch._meta_registrations
    _is_late = True
    if not (_BROUGHT | _USING).isdisjoint(sys.modules):
        import_before(next(iter(_USING)))
        return
    # Its generators need what torch._prims sets.
    torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)
