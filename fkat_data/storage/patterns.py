"""Patterns of files as the shell's; what exists as it is written is meant, and no pattern."""

import re
from collections.abc import Callable
from glob import escape

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.interruption import genuine

#: A character that stands for itself, as ``glob.escape`` writes it, or one that stands for others.
_SPECIAL = re.compile(r"\[([*?\[])\]|[*?\[]")
#: A wildcard matches no hidden name: see ``fkat_data.storage.folders``.
_SHOWN = r"(?!\.|_(?![^/]*=))"


def wildcard_at(pattern: str) -> int | None:
    """Return where a pattern has its first wildcard; None: it is a name."""
    return next((found.start() for found in _SPECIAL.finditer(pattern) if found[1] is None), None)


def unescaped(pattern: str) -> str:
    """Return the name that a pattern without wildcards is of."""
    return _SPECIAL.sub(lambda found: found[1] or found[0], pattern)


def literal_where(pattern: str, exists: Callable[[str], bool]) -> str:
    """Return a pattern whose parts are escaped up to the first that does not exist as it is written.

    Args:
        pattern: The pattern, with slashes.
        exists: Whether there is a file or a folder of this name.
    """
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        if wildcard_at(part) is not None:
            if not exists("/".join([*map(unescaped, parts[:number]), part])):
                break
            parts[number] = escape(part)
    return "/".join(parts)


def compiled(pattern: str, argument: str = "remote") -> re.Pattern[str]:
    """Return the regular expression of a pattern: ``*``, ``?``, ``[...]``, and ``**`` for folders at any depth.

    Args:
        pattern: The pattern, with slashes.
        argument: The caller's argument, for messages.

    Raises:
        ConfigurationError: It has an invalid range of letters.
    """
    parts: list[str] = []
    components = pattern.split("/")
    for number, component in enumerate(components):
        is_last = number == len(components) - 1
        if component == "**":
            parts.append(rf"(?:{_SHOWN}[^/]+/)*" + (rf"{_SHOWN}[^/]+" if is_last else ""))
        else:
            parts.append(_component(component) + ("" if is_last else "/"))
    try:
        return re.compile("".join(parts))
    except genuine(re.error) as error:
        raise ConfigurationError(argument, pattern, f"a pattern of files as the shell's ({error})") from None


def may_be_above(folder: str, pattern: str) -> bool:
    """Return whether files in a folder, or in one below it, may match a pattern."""
    parts, names = pattern.split("/"), folder.split("/")
    is_deep = "**" in parts
    above = parts[: parts.index("**")] if is_deep else parts[:-1]
    count = min(len(names), len(above))
    is_within = is_deep or count == len(names)
    return is_within and (not count or compiled("/".join(above[:count])).fullmatch("/".join(names[:count])) is not None)


def _component(text: str) -> str:
    found = [_SHOWN] if _SPECIAL.match(text) else []
    position = 0
    while position < len(text):
        letter = text[position]
        end = text.find("]", position + 2) if letter == "[" else -1
        if letter == "*":
            found.append("[^/]*")
        elif letter == "?":
            found.append("[^/]")
        elif end > 0:
            # These letters would mean something to ``re`` that they do not mean to a shell.
            inside = re.sub(r"([\\\[&~|])", r"\\\1", text[position + 1 : end])
            found.append(f"[{'^/' + inside[1:] if inside[0] in '!^' else inside}]")
            position = end
        else:
            found.append(re.escape(letter))
        position += 1
    return "".join(found)
