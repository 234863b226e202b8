"""Notes on an exception of the user's, whose ``__notes__`` may be anything."""

from typing import Any, cast

from fkat_data.interruption import suppress


def notes_of(error: BaseException) -> list[str]:
    """Return an exception's notes; none where ``__notes__`` is no list of them."""
    notes: Any = None
    with suppress(Exception):  # a class may define it as anything
        notes = error.__notes__
    return [note for note in cast("list[Any]", notes) if isinstance(note, str)] if isinstance(notes, list) else []


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception; do nothing where it takes none, as a frozen dataclass does."""
    with suppress(Exception):
        if not isinstance(getattr(error, "__notes__", []), list):
            error.__notes__ = []
        error.add_note(note)
