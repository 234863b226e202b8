"""Replace libraries that a peer imports but does not need here (cloud SDKs, model zoos) by empty modules.

Installed libraries are still imported.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

#: By the library that imports them.
_UNNEEDED = {
    "streaming": {"boto3", "botocore", "pandas", "snappy", "torchvision", "transformers", "zstd"},
    # S3 needs its own libraries.
    "streaming over S3": {"pandas", "snappy", "torchvision", "transformers", "zstd"},
    "litdata": {"boto3", "botocore", "tifffile"},
}


def imported(library: str, over: str = "") -> Any:
    """Import a library without the modules that it does not need here, ``over`` a store that needs some of them."""
    sys.meta_path.append(_Finder(_UNNEEDED[library + over]))
    return importlib.import_module(library)


class _StandIn(ModuleType):
    """A module in which every name is an empty class."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Exception,), {})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds the modules that no other finder found, because it comes last."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        return (
            ModuleSpec(fullname, self, is_package=True) if fullname.split(".", maxsplit=1)[0] in self._names else None
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module
