"""An index of the lines of a text, of bounded size and built in one pass."""

import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ShardCorruptError

_MAX_ANCHORS = 1 << 20
_TAB, _CARRIAGE_RETURN, _SPACE = b"\t\r "


class LineIndex(NamedTuple):
    """Offsets of every ``stride``-th line of a text. Blank lines do not count.

    Attributes:
        anchors: int64: offsets in bytes of the lines 0, ``stride``, 2 ``stride`` and so on.
        stride: Lines per anchor. It doubles whenever the anchors exceed about a million, or 8 MiB.
        num_lines: Number of lines in the text.
        num_bytes: Size of the text in bytes.
        checksum: CRC-32 of the text.
    """

    anchors: "array[int]"
    stride: int
    num_lines: int
    num_bytes: int
    checksum: int

    @classmethod
    def of(
        cls, path: str, chunks: Iterable[bytes], max_line_bytes: int, max_anchors: int = _MAX_ANCHORS
    ) -> "LineIndex":
        """Return the index of a text.

        Args:
            path: File of the text, for error messages.
            chunks: The text, in pieces of any size.
            max_line_bytes: Maximum length of a line in bytes.
            max_anchors: Maximum number of anchors; beyond it, every second one is dropped.

        Raises:
            ShardCorruptError: A line is longer than ``max_line_bytes``.
        """
        anchors, stride, num_lines, num_bytes = array("q"), 1, 0, 0
        checksum = 0
        for offset, text in _whole_lines(path, chunks, max_line_bytes):
            begins = _begins(text) + offset
            first = -num_lines % stride
            anchors.frombytes(begins[first::stride].astype(np.int64).tobytes())
            num_lines += len(begins)
            num_bytes = offset + len(text)
            checksum = zlib.crc32(text, checksum)
            while len(anchors) > max_anchors:
                anchors, stride = anchors[::2], 2 * stride
        return cls(anchors, stride, num_lines, num_bytes, checksum)

    def block(self, number: int) -> tuple[int, int]:
        """Return offset and size in bytes of the ``stride`` lines that begin at an anchor."""
        end = self.anchors[number + 1] if number + 1 < len(self.anchors) else self.num_bytes
        return self.anchors[number], end - self.anchors[number]


def lines_of(path: str, chunks: Iterable[bytes], max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text that are not blank, each with its offset in bytes.

    Args:
        path: File of the text, for error messages.
        chunks: The text, in pieces of any size.
        max_line_bytes: Maximum length of a line in bytes.

    Raises:
        ShardCorruptError: A line is longer than ``max_line_bytes``.
    """
    for offset, text in _whole_lines(path, chunks, max_line_bytes):
        begins: list[int] = _begins(text).tolist()  # empty if all lines are blank
        for begin, end in zip(begins, [*begins, len(text)][1:], strict=True):
            yield offset + begin, text[begin:end]


def _whole_lines(path: str, chunks: Iterable[bytes], max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of whole lines, with their offsets."""
    offset, rest = 0, b""
    for chunk in chunks:
        text = rest + chunk
        end = text.rfind(b"\n", len(rest)) + 1
        if end:
            yield offset, text[:end]
        offset, rest = offset + end, text[end:]
        if len(rest) > max_line_bytes:
            reason = f"the line at byte {offset} of the text is longer than max_line_bytes = {max_line_bytes:,}"
            raise ShardCorruptError(path, reason)
    if rest:
        yield offset, rest


def _begins(text: bytes) -> npt.NDArray[Any]:
    """Return the offsets of the lines that are not blank."""
    content = np.frombuffer(text, np.uint8)
    begins = np.concatenate([[0], np.flatnonzero(content == ord("\n")) + 1])
    begins = begins[begins < len(text)]
    if not len(begins):
        return begins
    # Blank are the space and what lies from tab to carriage return; zeros are no text, and not blank: they are damage.
    is_blank = (content - np.uint8(_TAB) <= _CARRIAGE_RETURN - _TAB) | (content == _SPACE)
    return begins[~np.logical_and.reduceat(is_blank, begins)]
