"""Stores whose answers a test writes down."""

from fkat_data.streaming.store import Redaction, Store

CONTENT = bytes(range(256)) * 4
OTHER = CONTENT[::-1]


class ScriptedBody:
    def __init__(self, answer, start):
        content, version, cut, step, has_size, shift = answer
        self.start = start if start == 0 or shift is None else min(start + shift, len(content))
        if shift == "whole":
            self.start = 0
        self.size_bytes = len(content) if has_size else None
        self.version = version
        self._rest = content[self.start :]
        self._left = len(self._rest) if cut is None else cut
        self._is_cut = cut is not None and cut < len(self._rest)
        self._step = step

    def read(self, timeout_s):
        assert timeout_s > 0
        if self._left <= 0 and self._is_cut:
            raise ConnectionResetError("cut")
        chunk = self._rest[: min(self._step, self._left)]
        self._rest = self._rest[len(chunk) :]
        self._left -= len(chunk)
        return chunk

    def close(self):
        pass


class ScriptedClient:
    """Gives the answers of a list, then the final one: what a body is made of, None for no answer, or an error."""

    def __init__(self, answers, final=None):
        self.answers = list(answers)
        self.final = final
        self.starts = []

    def open(self, name, start, version, timeout_s, stop=None):
        self.starts.append(start)
        answer = self._next()
        shift = answer[5]
        if start and shift is None:
            return ScriptedBody((*answer[:5], "whole"), 0)
        return ScriptedBody(answer, start)

    def version(self, name, timeout_s, *, is_timed=False):
        return self._next()

    def close(self):
        pass

    def _next(self):
        answer = self.answers.pop(0) if self.answers else self.final
        if answer is None:
            raise TimeoutError
        if isinstance(answer, BaseException):
            raise answer
        return answer


def store_of(client, num_retries=2, timeout_s=60.0):
    return Store("s3://b", lambda: client, Redaction("s3://b", {}), num_retries=num_retries, timeout_s=timeout_s)
