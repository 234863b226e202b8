"""Tracebacks of errors in users' code: theirs first, without the frames by which this library came there.

``FKAT_DATA_FULL_TRACEBACK=1`` in the environment keeps all frames.
"""

import functools
import os
import traceback
from pathlib import Path

import torch.utils.data

__all__ = ["are_folded", "fold", "folded_text"]

# Between this library and a dataset may be torch's DataLoader.
_OURS = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, torch.utils.data.__file__))
_HINT = "(the frames of fkat_data before these are left out; FKAT_DATA_FULL_TRACEBACK=1 shows them)"


def are_folded() -> bool:
    """Return whether frames of this library are left out."""
    return os.environ.get("FKAT_DATA_FULL_TRACEBACK", "0") in ("", "0")


def fold(error: BaseException) -> None:
    """Let an error's traceback begin with the first frame that is not this library's, if one is the user's."""
    tracebacks = [error.__traceback__]
    while tracebacks[-1] is not None:
        tracebacks.append(tracebacks[-1].tb_next)
    files = [each.tb_frame.f_code.co_filename for each in tracebacks if each is not None]
    if are_folded():
        # Not an assignment: a user's class may refuse those.
        BaseException.with_traceback(error, tracebacks[_num_before(files)])


def folded_text(error: BaseException) -> str:
    """Return an error as text without its notes, which travel beside it, and its causes, all shortened as by ``fold``."""
    whole = traceback.TracebackException.from_exception(error)
    whole.__notes__ = None
    num_left_out = sum(_shorten(each) for each in _chain(whole)) if are_folded() else 0
    text = "".join(whole.format())
    return f"{text}{_HINT}\n" if num_left_out else text


def _chain(error: traceback.TracebackException | None) -> list[traceback.TracebackException]:
    found: list[traceback.TracebackException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _shorten(error: traceback.TracebackException) -> int:
    num_before = _num_before([frame.filename for frame in error.stack])
    del error.stack[:num_before]
    return num_before


def _num_before(files: list[str]) -> int:
    """Return how many frames of this library's come before all others; 0 where no frame is the user's."""
    if all(file.startswith(_others()) for file in files):
        return 0
    return next(index for index, file in enumerate(files) if not file.startswith(_OURS))


@functools.cache
def _others() -> tuple[str, ...]:
    import sysconfig  # noqa: PLC0415 - takes milliseconds, and only errors need it

    paths = sysconfig.get_paths()
    return (*_OURS, "<frozen ", *(paths[kind] + os.sep for kind in ("stdlib", "purelib", "platlib")))
