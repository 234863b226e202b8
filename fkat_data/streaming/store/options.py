"""Check the options of a store's file system."""

from collections.abc import Mapping
from typing import Any, cast

from fkat_data.errors import ConfigurationError


def given_options(storage_options: Any) -> dict[str, Any]:
    """Return ``storage_options`` as a dict, empty for None.

    Raises:
        ConfigurationError: They are no mapping with names as keys. The message shows no value.
    """
    if storage_options is None:
        return {}
    if isinstance(storage_options, Mapping):
        options = cast("Mapping[object, Any]", cast("object", storage_options))
        texts = {key: value for key, value in options.items() if isinstance(key, str)}
        if len(texts) == len(options):
            return texts
    # Its values may be secrets.
    shown = f"<{type(cast('object', storage_options)).__name__}>"
    raise ConfigurationError("storage_options", shown, "a dict of options of an fsspec file system, or None")
