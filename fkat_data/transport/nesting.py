"""Name what is nested too deep for pickling."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

_CONTAINERS: frozenset[Any] = frozenset({dict, list, tuple})
_MOST_KEYS = 4
_LEAST_DEPTH = 100


def is_nested_deep(value: Any) -> bool:
    """Return whether ``too_deep`` blames lists, tuples or dicts, instead of objects that refer to one another."""
    return _deepest([value])[1] >= _LEAST_DEPTH


def too_deep(value: Any) -> RecursionError:
    """Return the error of a microbatch at which pickling met the limit of recursion."""
    path, depth = _deepest([value])
    if depth < _LEAST_DEPTH:
        return RecursionError("the objects of a microbatch refer to one another too deep for pickling")
    shown = "".join(f"[{key!r}]" for key in path[:_MOST_KEYS])
    return RecursionError(
        f"{shown}… of a microbatch is lists, tuples or dicts nested {depth:,} deep, too deep for pickling: flatten it"
    )


def _deepest(value: Any) -> tuple[list[Any], int]:
    """Return the keys and indices on the way to the innermost container, and their number."""
    # Without recursion, and each container once, at the depth at which it is first met.
    places: list[tuple[Any, int, Any, int]] = [(value, -1, None, 0)]  # the container, its parent's place, key, depth
    seen = {id(value)}
    for place, (container, _, _, depth) in enumerate(places):
        for key, part in _items(container):
            if id(part) not in seen:
                seen.add(id(part))
                places.append((part, place, key, depth + 1))
    _, parent, key, depth = max(places, key=lambda found: found[3])
    path: list[Any] = []
    while parent >= 0:
        path.append(key)
        _, parent, key, _ = places[parent]
    return path[::-1][1:], depth


def _items(container: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the containers in a container, with their keys or indices."""
    items = cast("Iterable[tuple[Any, Any]]", container.items() if type(container) is dict else enumerate(container))
    return ((key, part) for key, part in items if cast("Any", type(part)) in _CONTAINERS)
