"""The two sides of a writer's ``out``: a local path, and a remote path or URL."""

from collections.abc import Sequence
from typing import Any, cast

from fkat_data.errors import ConfigurationError
from fkat_data.location import is_url, resolved

_EXPECTED = "a local path, a URL, or (local path, URL or path)"


def local_and_remote(argument: str, value: Any) -> tuple[str | None, str | None]:
    """Split a writer's ``out`` into (local path or None, remote path or URL or None). Paths are absolute.

    Args:
        argument: Name of the argument, for messages.
        value: A local path, a URL, or (local path, URL or path).

    Raises:
        ConfigurationError: ``value`` has another form.
    """
    if not isinstance(value, (tuple, list)):
        location = resolved(argument, value, _EXPECTED)
        return (None, location) if is_url(location) else (location, None)
    sides = cast("Sequence[Any]", value)
    if len(sides) == 2 and all(sides):
        local, remote = (resolved(argument, side, _EXPECTED) for side in sides)
        if not is_url(local):
            return local, remote
    raise ConfigurationError(argument, cast("object", value), _EXPECTED)
