"""Tracebacks of errors in users' code: theirs first, without the frames by which this library came there.

``FKAT_DATA_FULL_TRACEBACK=1`` in the environment keeps all frames.
"""

import functools
import os
import traceback
from pathlib import Path
from types import FrameType
from typing import TypeVar

import torch.utils.data

from fkat_data.errors import FkatDataError
from fkat_data.errors.wording import notes_of

_Error = TypeVar("_Error", BaseException, traceback.TracebackException)

_ROOT = f"{Path(__file__).parents[1]}{os.sep}"
# Between this library and a dataset may be torch's DataLoader.
_OURS = (_ROOT, f"{Path(torch.utils.data.__file__).parent}{os.sep}")
#: The first line of the note with which a worker's error travels.
OF_WORKER = "The worker's traceback:"
_HINT = "(the frames of fkat_data before these are left out; FKAT_DATA_FULL_TRACEBACK=1 shows them)"


def hide_own_frames(error: BaseException) -> None:
    """Let the tracebacks of an error and its causes begin with the first frame that is not this library's.

    Where no frame is the user's, nothing is left of the traceback of an error of this library, a worker's error, or an
    interruption: the message and its notes say all. The traceback of an error that this library did not mean to raise
    stays as it is.
    """
    if not _are_hidden():
        return
    is_said = _is_said(error)
    for each in _chain(error):
        tracebacks = [each.__traceback__]
        while tracebacks[-1] is not None:
            tracebacks.append(tracebacks[-1].tb_next)
        files = [found.tb_frame.f_code.co_filename for found in tracebacks if found is not None]
        # Not an assignment: a user's class may refuse those.
        BaseException.with_traceback(each, tracebacks[_num_before(files, is_said=is_said)])


class HideOwnFrames:
    """A context that hides this library's frames in what is raised in it."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Hide the frames of the error."""
        if error is not None:
            hide_own_frames(error)


def shortened_text(error: BaseException) -> str:
    """Return an error as text, without its notes, which travel beside it; with its causes, shortened as they are.

    Nothing is left of an error whose message says all.
    """
    whole = traceback.TracebackException.from_exception(error)
    whole.__notes__ = None
    if not _are_hidden():
        return "".join(whole.format())
    is_said, num_left_out, num_shown = _is_said(error), 0, 0
    for each in _chain(whole):
        num_before = _num_before([frame.filename for frame in each.stack], is_said=is_said)
        del each.stack[:num_before]
        num_left_out += num_before
        num_shown += len(each.stack)
    text = "".join(whole.format()) if num_shown or not is_said else ""
    return f"{text}{_HINT}\n" if num_left_out and text else text


def _are_hidden() -> bool:
    return os.environ.get("FKAT_DATA_FULL_TRACEBACK", "0") in ("", "0")


def _chain(error: _Error) -> list[_Error]:
    chain: list[_Error] = []
    shown: _Error | None = error
    while shown is not None and not any(shown is each for each in chain):
        chain.append(shown)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return chain


def _is_said(error: BaseException) -> bool:
    is_of_worker = any(note.startswith(OF_WORKER) for note in notes_of(error))
    return is_of_worker or isinstance(error, FkatDataError) or not isinstance(error, Exception)


def _num_before(files: list[str], *, is_said: bool) -> int:
    """Return how many frames are left out: this library's before all others."""
    if all(file.startswith(_others()) for file in files):
        if is_said:
            return len(files)
        # What another library raises is likely about the user's data; what this one raises is a fault of its own.
        return 0 if not files or files[-1].startswith(_ROOT) else _num_leading(files, (_ROOT,))
    return _num_leading(files, _OURS)


def _num_leading(files: list[str], roots: tuple[str, ...]) -> int:
    return next(index for index, file in enumerate(files) if not file.startswith(roots))


@functools.cache
def _others() -> tuple[str, ...]:
    import sysconfig  # noqa: PLC0415 - takes milliseconds, and only errors need it

    paths = sysconfig.get_paths()
    return (*_OURS, "<frozen ", *(paths[kind] + os.sep for kind in ("stdlib", "purelib", "platlib")))


def caller_of(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the function that called this one, comprehensions left out."""
    caller = None if frame is None else frame.f_back
    while caller is not None and caller.f_code.co_name in ("<dictcomp>", "<listcomp>", "<genexpr>"):
        caller = caller.f_back
    return caller
