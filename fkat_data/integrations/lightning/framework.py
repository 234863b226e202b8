"""Lightning under either of its names: ``lightning.pytorch`` and ``pytorch_lightning`` share no class.

A Trainer takes objects of its own package only. Which one that is shows when a user makes an object, not when this
package is imported: so a class gets its bases when the first object of it is made.
"""

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Self

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_MISSING = "fkat_data.lightning needs lightning or pytorch_lightning: pip install lightning"


class Flavoured:
    """A class whose objects are also of a class of the Lightning that is imported; of both, if both are.

    Attributes:
        base_name: Name of Lightning's class.
    """

    base_name: ClassVar[str]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make an object, of a class with Lightning's class among its bases."""
        del args, options
        made: Any = _with_bases(cls, _bases(cls.base_name))
        return object.__new__(made)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (vars(type(self)).get("plain_class", type(self)),), self.__dict__


def check_installed() -> None:
    """Return if a Lightning can be imported, without importing it.

    Raises:
        ImportError: None is installed.
    """
    if not any(_is_installed(package) for package in _PACKAGES):
        raise ImportError(_MISSING)


def package_of(trainer: Any) -> Any:
    """Return the package that a Trainer is of."""
    name = type(trainer.fit_loop).__module__
    return next(sys.modules[package] for package in _PACKAGES if name.startswith(f"{package}."))


def _is_installed(package: str) -> bool:
    return package in sys.modules or find_spec(package.partition(".")[0]) is not None


def _bases(name: str) -> tuple[type, ...]:
    packages = [sys.modules[package] for package in _PACKAGES if package in sys.modules]
    if not packages:
        check_installed()
        packages = [import_module(next(package for package in _PACKAGES if _is_installed(package)))]
    return tuple(getattr(package, name) for package in packages)


@cache
def _with_bases(cls: type, bases: tuple[type, ...]) -> type:
    if "plain_class" in vars(cls):
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, "plain_class": cls}
    return type(cls.__name__, (cls, *bases), names)


def _remake(cls: Any) -> Any:
    return cls.__new__(cls)
