"""An exception on its way to another process: itself if it can be rebuilt there, its traceback in any case."""

import pickle
import traceback
from typing import Any

from fkat_data.errors import WorkerError
from fkat_data.interruption import genuine
from fkat_data.tracebacks import OF_WORKER, folded_text
from fkat_data.transport.codec import dumps, loads
from fkat_data.wording import add_note, notes_of

_LONGEST_TEXT = 100_000


def pack_failure(error: BaseException, place: str = "") -> bytes:
    """Return an exception as bytes, with its traceback as text.

    Args:
        error: The exception.
        place: A note about its place, for an exception that takes no notes itself.
    """
    try:
        text = folded_text(error)
    except BaseException:  # noqa: BLE001 - whatever its own __str__ raises, the exception must be reported
        text = (
            f"{type(error).__name__} (its message cannot be shown)\n{''.join(traceback.format_tb(error.__traceback__))}"
        )
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT // 2]}\n…\n{text[-_LONGEST_TEXT // 2 :]}"
    notes = notes_of(error) or ([place] if place else [])
    return pickle.dumps((_rebuildable(error), type(error).__qualname__, text, notes))


def reportable(raised: BaseException, raiser: str) -> Exception:
    """Return an error to raise in the trainer, which ``SystemExit`` would end in silence.

    Args:
        raised: The exception.
        raiser: What has raised it.
    """
    if isinstance(raised, Exception):
        return raised
    try:
        words = str(raised)
    except BaseException:  # noqa: BLE001 - whatever its own __str__ raises
        words = ""
    try:
        raise WorkerError(f"{raiser} raised {type(raised).__name__}({words})") from raised
    except WorkerError as error:
        return error


def unpack_failure(body: bytes) -> BaseException:
    """Return the exception to raise, with the worker's traceback as a note.

    It has its own type where that could be rebuilt, otherwise it is a ``WorkerError`` with the same text.
    """
    pickled, name, text, notes = pickle.loads(body)
    error = _rebuilt(pickled)
    if error is None:
        error = WorkerError(f"{name} in a worker; it cannot be rebuilt in this process, its traceback follows")
    for note in () if notes_of(error) else notes:
        add_note(error, note)
    if text:
        add_note(error, f"{OF_WORKER}\n{text}")
    return error


def _rebuildable(error: BaseException) -> bytes | None:
    try:
        pickled = dumps(error)
        copy = loads(pickled)
    except BaseException:  # noqa: BLE001 - whatever a user's exception does in pickling, sys.exit() too, it cannot travel
        return None
    return pickled if type(copy) is type(error) and len(pickled) <= 10 * _LONGEST_TEXT else None


def _rebuilt(pickled: bytes | None) -> BaseException | None:
    if pickled is None:
        return None
    try:
        rebuilt: Any = loads(pickled)
    except genuine(Exception):
        return None  # a class that only the worker can import
    return rebuilt if isinstance(rebuilt, BaseException) else None
