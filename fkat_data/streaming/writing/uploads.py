"""Uploads to a remote directory in threads, with retries."""

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fkat_data.streaming.writing.remote_directory import RemoteDirectory

__all__ = ["Uploads"]

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.25
#: Pending files per thread. At this limit the writer waits, so that the local disk does not fill up.
_PENDING_PER_THREAD = 4


class Uploads:
    """A queue of uploads and the threads that run them.

    Args:
        remote: Directory to upload to.
        max_workers: Number of threads; None for the standard library's default.
        num_attempts: Maximum number of attempts to upload a file.
        keep_local: Whether to keep a local file after its upload.
    """

    def __init__(
        self, remote: RemoteDirectory, *, max_workers: int | None, num_attempts: int, keep_local: bool
    ) -> None:
        self._remote = remote
        self._num_attempts = num_attempts
        self._keep_local = keep_local
        self._threads = ThreadPoolExecutor(max_workers, thread_name_prefix="fkat-upload")
        self._max_pending = _PENDING_PER_THREAD * (max_workers or 8)
        self._pending: deque[Future[None]] = deque()
        self._failure: Exception | None = None

    def put(self, path: Path, name: str) -> None:
        """Start an upload. Wait while too many are pending.

        Args:
            path: Path of the local file.
            name: Path to write, relative to the remote directory.

        Raises:
            Exception: An earlier upload failed. This is its error.
        """
        self.raise_failure()
        while len(self._pending) >= self._max_pending:
            self._settle()
        self._pending.append(self._threads.submit(self._upload, path, name))

    def raise_failure(self) -> None:
        """Raise the error of a failed upload, if there is one.

        Raises:
            Exception: The error of the failed upload. Every later call raises it again, because its file stays
                missing.
        """
        if self._failure is not None:
            raise self._failure
        while self._pending and self._pending[0].done():
            self._settle()

    def wait(self) -> None:
        """Wait until every file is uploaded.

        Raises:
            Exception: An upload failed. This is its error.
        """
        self.raise_failure()
        while self._pending:
            self._settle()

    def close(self, *, wait: bool = True) -> None:
        """Cancel uploads that have not started, and end the threads.

        Args:
            wait: Whether to wait for uploads that have started.
        """
        self._threads.shutdown(wait=wait, cancel_futures=True)
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
                    error.add_note(f"while uploading {path.name} to {self._remote.shown}, attempt {attempt}")
                    raise
                _log.warning(
                    "upload of %s to %s failed in attempt %d, retrying: %s", name, self._remote.shown, attempt, error
                )
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
        if not self._keep_local:
            path.unlink()
