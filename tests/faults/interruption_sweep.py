"""Raise in the caller's thread at any instruction of the package, as a signal's handler may, and go on.

A site is an instruction of the package. A sweep raises once at each site that its calls reach, in whichever call
reaches it first, and goes on with the next call as if nothing had been: sites of the recovery are met in the calls that
recover.
"""

import dis
import signal
import sys
import weakref
from pathlib import Path

import fkat_data

ROOT = str(Path(fkat_data.__file__).parent)
#: No signal's handler runs between these and the caller's next instruction.
SAFE = frozenset({dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE") if name in dis.opmap})


def is_below_finaliser(frame):
    """Return whether a loader is being ended that was dropped without ``close()``: Python swallows what is raised there."""
    while frame is not None:
        if frame.f_code is weakref.finalize.__call__.__code__:
            return True
        frame = frame.f_back
    return False


class Interruptions:
    """Raises at sites that were not met before.

    Args:
        error: The class of what is raised.
        share: Of the sites: 1 for all, 10 for every tenth.
        offset: Which tenth.
    """

    def __init__(self, error, share=1, offset=0):
        self.error = error
        self._share, self._offset = share, offset
        self.met = set()
        self.num_raised = 0
        self.last_site = None
        self._is_armed = False
        self.swallowed = []

    def handler(self, number, frame):
        raise self.error("interrupted")

    def __enter__(self):
        self._before = signal.signal(signal.SIGUSR2, self.handler), sys.unraisablehook
        sys.unraisablehook = self._unraisable
        return self

    def _unraisable(self, unraisable):
        if isinstance(unraisable.exc_value, self.error):
            self.swallowed.append((self.last_site, repr(unraisable.object)))

    def __exit__(self, *exception):
        handler, sys.unraisablehook = self._before
        signal.signal(signal.SIGUSR2, handler)

    def call(self, function, *arguments):
        """Call a function; return what it returns, and whether it was interrupted.

        Raises:
            BaseException: What the function raises by itself.
        """
        self._is_armed = True
        error = None
        sys.settrace(self._trace)
        try:
            result = function(*arguments)
        except BaseException as raised:  # noqa: BLE001 - it is looked at below
            error = raised
        finally:
            sys.settrace(None)
        was_raised = not self._is_armed
        self._is_armed = False
        if error is None:
            assert not was_raised, f"what was raised at {self.last_site} was swallowed"
            return result, False
        if type(error) is self.error and str(error) == "interrupted":
            return None, True
        assert not was_raised, f"raised at {self.last_site}, the caller got {error!r}"
        raise error

    def _trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(ROOT) or not self._is_armed or is_below_finaliser(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._at_instruction

    def _at_instruction(self, frame, event, argument):
        if event != "opcode" or not self._is_armed:
            return self._at_instruction
        code, offset = frame.f_code, frame.f_lasti
        # An instruction without a line only passes an exception on.
        if code.co_code[offset] in SAFE or frame.f_lineno is None:
            return self._at_instruction
        site = code, offset
        if site in self.met or (offset // 2 + code.co_firstlineno) % self._share != self._offset:
            return self._at_instruction
        self.met.add(site)
        self._is_armed = False
        self.num_raised += 1
        self.last_site = f"{Path(code.co_filename).relative_to(ROOT)}:{frame.f_lineno} {code.co_qualname} +{offset}"
        return self.handler(signal.SIGUSR2, frame)
