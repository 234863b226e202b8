"""A large JSON object, of which one list is read item by item: the whole is never in memory as dicts."""

import json
import re
from collections.abc import Callable
from typing import Any

__all__ = ["read_object"]

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def read_object(text: str, list_name: str, item: Callable[[int, Any], Any]) -> Any:
    """Return the value of a JSON text; if it is an object, one of its lists holds what ``item`` made of its items.

    Args:
        text: The JSON.
        list_name: Key of the list.
        item: Called with (number, item) for each of its items, in order; its results are kept in the item's place.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    cursor = _Cursor(text)
    value = _object(cursor, list_name, item) if cursor.took("{") else cursor.value()
    if cursor.place != len(text):
        raise json.JSONDecodeError("more follows", text, cursor.place)
    return value


def _object(cursor: "_Cursor", list_name: str, item: Callable[[int, Any], Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if cursor.took("}"):
        return content
    while True:
        name = cursor.value()
        cursor.expect(":")
        if not isinstance(name, str):
            raise json.JSONDecodeError("expected a key", cursor.text, cursor.place)
        content[name] = _list(cursor, item) if name == list_name and cursor.took("[") else cursor.value()
        if cursor.took("}"):
            return content
        cursor.expect(",")


def _list(cursor: "_Cursor", item: Callable[[int, Any], Any]) -> list[Any]:
    items: list[Any] = []
    if cursor.took("]"):
        return items
    while True:
        items.append(item(len(items), cursor.value()))
        if cursor.took("]"):
            return items
        cursor.expect(",")


class _Cursor:
    """A place in a text, always behind white space."""

    __slots__ = ("place", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self._go_to(0)

    def value(self) -> Any:
        value, end = _DECODER.raw_decode(self.text, self.place)
        self._go_to(end)
        return value

    def took(self, character: str) -> bool:
        found = self.text.startswith(character, self.place)
        if found:
            self._go_to(self.place + 1)
        return found

    def expect(self, character: str) -> None:
        if not self.took(character):
            raise json.JSONDecodeError(f"expected {character!r}", self.text, self.place)

    def _go_to(self, place: int) -> None:
        space = _SPACE.match(self.text, place)
        self.place = place if space is None else space.end()
