"""Empty modules in the place of libraries that a peer imports and does not need here: cloud SDKs, model zoos.

What is installed is imported as ever.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

__all__ = ["stand_in"]

#: By what imports them.
_NEEDLESS = {
    "streaming": {"boto3", "botocore", "pandas", "snappy", "torchvision", "transformers", "zstd"},
    # S3's own libraries are needed, and look for modules that are not there.
    "streaming over S3": {"pandas", "snappy", "torchvision", "transformers", "zstd"},
    "litdata": {"boto3", "botocore", "tifffile"},
}


def stand_in(library: str) -> None:
    """Let a library be imported without what it does not need here."""
    sys.meta_path.append(_Finder(_NEEDLESS[library]))


class _StandIn(ModuleType):
    """A module in which every name is a class of nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Exception,), {})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Comes last: finds what nothing else has found."""

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
