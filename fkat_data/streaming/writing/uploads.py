"""Files on their way to a remote directory, in threads, each tried several times."""

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fkat_data.streaming.writing.remote_directory import RemoteDirectory

__all__ = ["Uploads"]

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.25
#: Files that may wait for each thread: beyond it, who writes waits, so that the local disk does not fill up.
_QUEUED_FOR_EACH = 4


class Uploads:
    """Uploads under way.

    Args:
        remote: Where files go.
        max_workers: Threads; None: as many as the standard library takes.
        num_attempts: How often each file is tried.
        keep_local: Whether the local file stays after its upload.
    """

    def __init__(
        self, remote: RemoteDirectory, *, max_workers: int | None, num_attempts: int, keep_local: bool
    ) -> None:
        self._remote = remote
        self._num_attempts = num_attempts
        self._keep_local = keep_local
        self._threads = ThreadPoolExecutor(max_workers, thread_name_prefix="fkat-upload")
        self._most_pending = _QUEUED_FOR_EACH * (max_workers or 8)
        self._pending: deque[Future[None]] = deque()
        self._failure: Exception | None = None

    def put(self, path: Path, name: str) -> None:
        """Begin an upload; waits while too many are under way.

        Args:
            path: The local file.
            name: Its path in the remote directory.

        Raises:
            Exception: The error of an earlier upload, as it was raised in its thread.
        """
        self.raise_failure()
        while len(self._pending) >= self._most_pending:
            self._settle()
        self._pending.append(self._threads.submit(self._upload, path, name))

    def raise_failure(self) -> None:
        """Return if no upload has failed so far.

        Raises:
            Exception: The error of one that has, again and again: what is missing there stays missing.
        """
        if self._failure is not None:
            raise self._failure
        while self._pending and self._pending[0].done():
            self._settle()

    def wait(self) -> None:
        """Return when every file is there.

        Raises:
            Exception: The error of an upload.
        """
        self.raise_failure()
        while self._pending:
            self._settle()

    def close(self) -> None:
        """Give up what has not begun, wait for what has, and end the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()

    def _settle(self) -> None:
        try:
            self._pending.popleft().result()
        except Exception as error:
            self._failure = error
            raise

    def _upload(self, path: Path, name: str) -> None:
        for attempt in range(1, self._num_attempts + 1):
            try:
                self._remote.upload(str(path), name)
                break
            except Exception as error:
                if attempt == self._num_attempts:
                    error.add_note(f"while {path.name} was uploaded to {self._remote.url}, attempt {attempt}")
                    raise
                _log.warning("upload of %s to %s failed, attempt %d: %s", name, self._remote.url, attempt, error)
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
        if not self._keep_local:
            path.unlink()
