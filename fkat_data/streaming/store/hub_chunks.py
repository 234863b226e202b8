"""Read whole files of the Hugging Face hub by its transfer of chunks, over hf_xet."""

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, TypeVar

from fkat_data.background import in_thread
from fkat_data.interruption import genuine, suppress
from fkat_data.streaming.store.client import Body, TransferError

__all__ = ["ChunkTransfer"]

_logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_ON = ("1", "ON", "YES", "TRUE")


class ChunkTransfer:
    """The connections of a process to the hub's storage of chunks.

    Args:
        headers: The headers of requests for access to the storage.

    Attributes:
        is_usable: Whether files may be read by chunks. After a failure the process reads over HTTP.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)
        self._session: Any = None
        disabled = os.environ.get("HF_HUB_DISABLE_XET", "").upper() in _ON
        self.is_usable: bool = not disabled and find_spec("hf_xet") is not None

    def open(self, content_hash: str, access_url: str, size_bytes: int, version: str, timeout_s: float) -> Body:
        """Begin to read a file; see ``Client``.

        Args:
            content_hash: The storage's name for the content.
            access_url: Where the hub grants access to the storage.
            size_bytes: The size of the file.
            version: The version of the file.
            timeout_s: Seconds until the storage must have answered.

        Raises:
            TimeoutError: It did not.
            TransferError: It refused, or hf_xet is too old.
        """

        def begin() -> Any:
            hf_xet = importlib.import_module("hf_xet")
            self._session = self._session or hf_xet.XetSession()
            group = self._session.new_download_stream_group(
                token_refresh_url=access_url, token_refresh_headers=self._headers
            )
            return group.download_stream(hf_xet.XetFileInfo(content_hash, size_bytes))

        return _ChunkBody(self, self.tried(begin, timeout_s), size_bytes, version)

    def tried(self, function: Callable[[], _Result], timeout_s: float) -> _Result:
        """Return a function's result, computed within a limit of time; after a failure, chunks are not usable.

        Raises:
            TimeoutError: The function did not return in time.
            TransferError: It failed.
        """
        try:
            return in_thread(function, timeout_s)
        except genuine(TimeoutError):
            self._give_up("no answer in time")
            raise
        except genuine(Exception) as error:
            # hf_xet documents no errors; all of its own mean that this way is closed.
            reason = f"{type(error).__name__}: {error}"
            self._give_up(reason)
            # It may be chained to an error with secrets.
            raise TransferError(f"the transfer of chunks failed, {reason}") from None

    def _give_up(self, reason: str) -> None:
        if self.is_usable:
            self.is_usable = False
            _logger.warning("the hub's transfer of chunks failed; files come over HTTP from now on (%s)", reason)


class _ChunkBody:
    def __init__(self, transfer: ChunkTransfer, stream: Any, size_bytes: int, version: str) -> None:
        self._transfer = transfer
        self._stream = stream
        self.start: int = 0
        self.size_bytes: int | None = size_bytes
        self.version = version

    def read(self, timeout_s: float) -> bytes:
        return self._transfer.tried(lambda: bytes(next(self._stream, b"")), timeout_s)

    def close(self) -> None:
        # It cannot be cancelled while a thread that was left behind still reads from it.
        with suppress(RuntimeError):
            self._stream.cancel()
