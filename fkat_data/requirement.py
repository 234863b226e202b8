"""Import optional packages on demand, with an error that names the extra to install."""

from importlib import import_module
from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine


def required(module: str, extra: str) -> Any:
    """Import and return an optional module.

    Args:
        module: Full name of the module.
        extra: Extra of this package that installs the module.

    Raises:
        ConfigurationError: The module is not installed.
    """
    try:
        return import_module(module)
    except genuine(ModuleNotFoundError) as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the module is installed, but one of its own dependencies is not
        name = module.partition(".")[0]
        raise ConfigurationError(name, "<not installed>", f"pip install 'fkat_data[{extra}]'") from error
