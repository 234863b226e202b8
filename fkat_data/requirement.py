"""Packages that only some parts need: imported when such a part is, with an error that says what to install."""

from importlib import import_module
from typing import Any

from fkat_data.errors import ConfigurationError

__all__ = ["required"]


def required(module: str, extra: str) -> Any:
    """Return an optional module.

    Args:
        module: Its name, as it is imported.
        extra: The extra of this package that brings it.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and something that it needs is not
        name = module.partition(".")[0]
        raise ConfigurationError(name, "<not installed>", f"pip install 'fkat_data[{extra}]'") from error
