"""Open text files, plain or compressed, with errors that name the file."""

import gzip
import io
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.requirement import required

__all__ = ["opened", "opened_as_text"]

_ZSTD_SUFFIXES = (".zst", ".zstd")


@contextmanager
def opened(path: str) -> Generator[BinaryIO]:
    """Open a file for reading bytes. Its suffix says whether it is gzip (``.gz``), zstd (``.zst``, ``.zstd``) or plain.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: During the context, the compressed bytes turned out to be invalid, or the text is not UTF-8.
        ConfigurationError: The file is zstd, and zstandard is not installed.
    """
    suffix = Path(path).suffix.lower()
    zstandard: Any = required("zstandard", "streaming") if suffix in _ZSTD_SUFFIXES else None
    broken: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError)
    if zstandard is not None:
        broken = (*broken, zstandard.ZstdError)
    try:
        with Path(path).open("rb") as file:
            if suffix == ".gz":
                yield cast("BinaryIO", gzip.GzipFile(fileobj=file))
            elif zstandard is not None:
                reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
                yield cast("BinaryIO", io.BufferedReader(reader, 1 << 20))
            else:
                yield file
    except FileNotFoundError as error:
        raise ShardNotFoundError(path, "no such file") from error
    except broken as error:
        raise ShardCorruptError(path, str(error)) from error


@contextmanager
def opened_as_text(path: str) -> Generator[io.TextIOBase]:
    """Open a file as ``opened`` does, for reading UTF-8 with unchanged line ends."""
    with opened(path) as file:
        yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
