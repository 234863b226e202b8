"""The kind of a file by its first bytes: the compressions that are read, and advice for a file of another kind."""

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardError
from fkat_data.files.stored import NO_MEMORY, ZSTD_WINDOW_BYTES
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import required

#: What zstd says of a frame that needs another file.
_DICTIONARY = "Dictionary mismatch"
#: How many first bytes of a file tell what it is; those of a tar file stand at byte 257.
START_BYTES = 512
#: What the names of compressed files end with.
COMPRESSED_SUFFIXES = (".gz", ".zst", ".zstd", ".xz", ".lzma", ".bz2")
#: What those of other compressed files end with, which are refused, and what they are.
REFUSED_SUFFIXES = {
    ".br": "brotli",
    ".lz4": "lz4",
    ".snappy": "snappy",
    ".sz": "snappy",
    ".lzo": "lzo",
    ".z": "compress",
    ".7z": "7z",
    ".zip": "zip",
    ".rar": "rar",
    ".gpg": "an encrypted file",
    ".age": "an encrypted file",
}


class Signature(NamedTuple):
    """A kind of file.

    Attributes:
        name: What it is called.
        remedy: What to do with a file of this kind where another is expected; "": it is a compression that is read.
        start: Its first bytes.
        at: Where they stand.
    """

    name: str
    remedy: str
    start: bytes
    at: int = 0


def _decompress(command: str) -> str:
    return f"decompress it first, such as with `{command} FILE`"


_UNPACK = "unpack it first, and pass the files in it"
_TO_UTF8 = "write it as UTF-8 first, such as with `iconv -t UTF-8`"
_GZIP, _ZSTD, _LZ4 = Signature("gzip", "", b"\x1f\x8b"), Signature("zstd", "", b"\x28\xb5\x2f\xfd"), "lz4"
_SIGNATURES = (
    _GZIP,
    _ZSTD,
    Signature("xz", "", b"\xfd7zXZ\0"),
    Signature("lzma", "", b"\x5d\0\0"),
    *(
        Signature("bz2", "", b"BZh%d%b" % (level, block))
        for level in range(1, 10)
        for block in (b"1AY&SY", b"\x17rE8P\x90")
    ),
    Signature(_LZ4, _decompress("lz4 -d"), b"\x04\x22\x4d\x18"),
    Signature(_LZ4, _decompress("lz4 -d"), b"\x02\x21\x4c\x18"),
    Signature("snappy", _decompress("python -m snappy -d"), b"\xff\x06\0\0sNaPpY"),
    *(Signature("compress", _decompress("gzip -d"), start) for start in (b"\x1f\x9d", b"\x1f\xa0")),
    Signature("lzip", _decompress("lzip -d"), b"LZIP\x01"),
    Signature("lzop", _decompress("lzop -d"), b"\x89LZO\0"),
    Signature("lrzip", _decompress("lrzip -d"), b"LRZI\0"),
    *(Signature("zlib", _decompress("pigz -dz"), start) for start in (b"x\x01", b"x\x9c", b"x\xda")),
    *(
        Signature("zstd before version 0.8", _decompress("zstd -d"), bytes((first, *b"\xb5\x2f\xfd")))
        for first in range(0x22, 0x28)
    ),
    Signature("7z", _UNPACK, b"7z\xbc\xaf\x27\x1c"),
    *(Signature("zip", _UNPACK, b"PK" + rest) for rest in (b"\x03\x04", b"\x05\x06", b"\x07\x08")),
    Signature("rar", _UNPACK, b"Rar!\x1a\x07"),
    Signature("tar", "fkat_data.datasets.TarDataset reads tar files", b"ustar", 257),
    Signature("Parquet", "fkat_data.datasets.ParquetDataset reads Parquet files", b"PAR1"),
    Signature("Arrow", "`fkat-data convert --kind arrow` reads Arrow files", b"ARROW1"),
    Signature("an Arrow stream", "`fkat-data convert --kind arrow` reads Arrow files", b"\xff\xff\xff\xff"),
    Signature("NumPy", "fkat_data.datasets.TokenWindows reads tokens of NumPy files", b"\x93NUMPY"),
    Signature("Avro", "write it as Parquet or JSON lines", b"Obj\x01"),
    Signature("ORC", "write it as Parquet", b"ORC\x08"),
    Signature("HDF5", "write it as Parquet, or read it by a Dataset of your own", b"\x89HDF\r\n\x1a\n"),
    Signature("SQLite", "read it by a Dataset of your own", b"SQLite format 3\0"),
    Signature(
        "a pointer of Git LFS", "fetch the file that it stands for, with `git lfs pull`", b"version https://git-lfs."
    ),
    *(
        Signature(name, "if a server has sent it instead of the file, look at the URL in a browser", start)
        for name, starts in (
            ("a web page", (b"<!DOCTYPE ", b"<!doctype ", b"<html", b"<HTML")),
            ("an XML document", (b"<?xml ",)),
        )
        for start in starts
    ),
    Signature("text in UTF-16 or UTF-32", _TO_UTF8, b"\xff\xfe"),
    Signature("text in UTF-16", _TO_UTF8, b"\xfe\xff"),
    Signature("text in UTF-32", _TO_UTF8, b"\0\0\xfe\xff"),
)
#: The compressions that are read, for messages.
READ_COMPRESSIONS = ", ".join(dict.fromkeys(kind.name for kind in _SIGNATURES if not kind.remedy))

_SKIPPABLE = struct.Struct("<II")
_FIRST_SKIPPABLE, _LAST_SKIPPABLE = 0x184D2A50, 0x184D2A5F


def signature_of(start: bytes) -> Signature | None:
    """Return what a file is by its first bytes; None: none of the kinds that are known by them."""
    at = 0
    # zstd and lz4 pass over the same frames, with which pzstd begins.
    while len(start) - at >= _SKIPPABLE.size:
        magic, size = _SKIPPABLE.unpack_from(start, at)
        if not _FIRST_SKIPPABLE <= magic <= _LAST_SKIPPABLE:
            break
        at += _SKIPPABLE.size + size
    if at:
        return next((kind for kind in _SIGNATURES if kind.name == _LZ4 and start.startswith(kind.start, at)), _ZSTD)
    return next((kind for kind in _SIGNATURES if start.startswith(kind.start, kind.at)), None)


def compression_of(path: str, start: bytes) -> str | None:
    """Return the compression of a file of text, one of those that are read; None: it is plain.

    Args:
        path: The file, for messages.
        start: Its first bytes.

    Raises:
        ConfigurationError: It is a file of another kind, and no text.
        ShardCorruptError: Its name says that it is compressed, and it is empty, or begins in another way.
    """
    kind = signature_of(start)
    suffix = f".{path.lower().rpartition('.')[2]}"
    if kind is not None and not kind.remedy:
        return kind.name
    if not start and suffix in (*COMPRESSED_SUFFIXES, *REFUSED_SUFFIXES):
        raise ShardCorruptError(path, "the file is empty, and its name says that it is compressed")
    if kind is None and suffix in COMPRESSED_SUFFIXES and _is_binary(start):
        raise ShardCorruptError.of_field(path, "first bytes", f"those of its name's compression, {suffix}", start[:8])
    check_text(path, start)
    return None


def check_kind(path: str, start: bytes, *names: str) -> None:
    """Check that a file that could not be read is not known to be of another kind: then it is not damaged.

    Args:
        path: The file, for messages.
        start: Its first bytes.
        names: What it should be.

    Raises:
        ConfigurationError: It is of another kind.
    """
    kind = signature_of(start)
    if kind is not None and kind.name not in names:
        remedy = kind.remedy or "decompress it, or pass it to the reader of what it holds"
        raise ConfigurationError("paths", path, f"{names[0]} files; its first bytes are {kind.name}: {remedy}")


def check_text(path: str, start: bytes) -> None:
    """Check that a file's text begins as text does: what is none would be taken for any number of lines.

    Args:
        path: The file, for messages.
        start: The beginning of its text.

    Raises:
        ConfigurationError: It is a file of another kind.
    """
    kind = signature_of(start)
    if kind is None and not _is_binary(start):
        return
    name, remedy = ("", "a Dataset of your own reads it") if kind is None else (kind.name, kind.remedy)
    if kind is None:
        named = REFUSED_SUFFIXES.get(f".{path.lower().rpartition('.')[2]}")
        name = f"no text ({start[:8]!r})" if named is None else named
        remedy = remedy if named is None else "decompress it first"
    elif not remedy:
        name, remedy = f"{name} within a compressed file", "decompress it once"
    expected = f"text in UTF-8, plain or compressed ({READ_COMPRESSIONS}); its first bytes are {name}: {remedy}"
    raise ConfigurationError("paths", path, expected)


_BINARY_BYTES = 256
#: All that text may have below the space: tab, ends of lines and pages, and the escape of terminals.
_CONTROLS = bytes(sorted({*range(32)} - {*b"\t\n\v\f\r\x1b"}))


def _is_binary(start: bytes) -> bool:
    """Return whether bytes are surely no text: a single damaged line is read up to its damage."""
    if b"\0" in start[:2] and start[:2].strip(b"\0"):
        return True  # letters of two bytes
    head = start[:_BINARY_BYTES]
    if head.translate(None, _CONTROLS) == head:
        return False
    try:
        # A letter may be cut at the end.
        head[:-3].decode("utf-8", "surrogatepass")
    except genuine(UnicodeDecodeError):
        return True
    return False


# What is fed at a time bounds the output: 4 bytes of zstd can expand to 128 KiB, and one of gzip to 1 KiB.
_ZSTD_PIECE_BYTES, _GZIP_PIECE_BYTES, _PIECE_BYTES = 1 << 10, 16 << 10, 64 << 10
_MOST_TEXT_BYTES = 1 << 20
_WITH_GZIP_HEADER = 16 + zlib.MAX_WBITS


class _Family(NamedTuple):
    """A compression, and how it is read.

    Attributes:
        piece_bytes: How much is fed at a time.
        make: Makes the decompressor of a frame.
        texts: Called with it and the next bytes, it returns their text in pieces.
        damage: What it raises for bytes that are damaged.
    """

    piece_bytes: int
    make: Callable[[], Any]
    texts: Callable[[Any, bytes], Iterator[bytes]]
    damage: tuple[type[Exception], ...]


def _text(frame: Any, piece: bytes) -> Iterator[bytes]:
    yield frame.decompress(piece)


def _texts(frame: Any, piece: bytes) -> Iterator[bytes]:
    """Yield the text of some bytes in pieces of at most 1 MiB, however much the bytes expand to."""
    yield frame.decompress(piece, _MOST_TEXT_BYTES)
    while not frame.eof and not frame.needs_input:
        yield frame.decompress(b"", _MOST_TEXT_BYTES)


def _family(compression: str) -> _Family:
    if compression == "zstd":
        zstandard = required("zstandard", "json")
        make = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj
        return _Family(_ZSTD_PIECE_BYTES, make, _text, (zstandard.ZstdError,))
    if compression == "gzip":
        return _Family(_GZIP_PIECE_BYTES, partial(zlib.decompressobj, _WITH_GZIP_HEADER), _text, (zlib.error,))
    if compression == "bz2":
        return _Family(_PIECE_BYTES, bz2.BZ2Decompressor, _texts, (OSError, ValueError))
    # Of xz, and of lzma before it.
    return _Family(_PIECE_BYTES, lzma.LZMADecompressor, _texts, (lzma.LZMAError,))


def decompressed(path: str, compression: str, stored: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text of compressed bytes, of one frame or of several, in pieces of at most 32 MiB.

    Args:
        path: The file, for messages.
        compression: What ``compression_of`` has returned.
        stored: The bytes, in pieces of any size.

    Raises:
        ShardCorruptError: They are damaged or truncated.
        ConfigurationError: They are zstd, and zstandard is not installed.
    """
    family = _family(compression)
    frame: Any = None  # the current one
    for chunk in stored:
        for first in range(0, len(chunk), family.piece_bytes):
            piece = chunk[first : first + family.piece_bytes]
            # Tapes fill up a file with zeros; those behind a frame of xz are part of the format.
            while piece := piece if frame or compression == "zstd" else piece.lstrip(b"\0"):
                texts: Iterator[bytes] | None = None
                while True:
                    try:
                        frame = frame or family.make()
                        texts = texts or family.texts(frame, piece)
                        text = next(texts, None)
                    except genuine(*family.damage) as error:
                        if _DICTIONARY in str(error):
                            expected = "zstd without a dictionary: decompress it with `zstd -d -D DICTIONARY`"
                            raise ConfigurationError("paths", path, expected) from error
                        kind = ShardError if NO_MEMORY in str(error) else ShardCorruptError
                        raise kind(path, f"{compression}: {error}") from error
                    if text is None:
                        break
                    if text:
                        yield text
                piece, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise ShardCorruptError(path, f"{compression}: the file ends in the middle of a frame")
