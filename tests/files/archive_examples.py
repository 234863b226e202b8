"""Small tar archives: those that programs write, and those that nothing should write."""

import io
import tarfile

__all__ = ["END", "archive", "header", "index", "padded", "pax"]

from fkat_data.files.tar import TarIndex

END = bytes(1024)


def archive(members, form=tarfile.USTAR_FORMAT):
    """An archive as Python writes it, of (name, content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as writer:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            writer.addfile(info, io.BytesIO(content))
    return file.getvalue()


def padded(content):
    return content + bytes(-len(content) % 512)


def header(name, size=0, kind=b"0", *, size_field=None, magic=b"ustar\x0000", prefix=b"", checksum=None, signed=False):
    """One header with any values."""
    name = name.encode() if isinstance(name, str) else name
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = size_field or b"%011o\0" % size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = magic
    block[345 : 345 + len(prefix)] = prefix
    total = sum(block) if not signed else sum(byte - 256 if byte > 127 else byte for byte in block)
    block[148:156] = checksum or b"%06o\0 " % total
    return bytes(block)


def pax(*records, kind=b"x", raw=None):
    """A pax header of (keyword, value)."""
    content = b""
    for keyword, value in records:
        body = b" %s=%s\n" % (keyword, value)
        size = len(body)
        while len(b"%d" % size) + len(body) != size:
            size = len(b"%d" % size) + len(body)
        content += b"%d" % size + body
    content = content if raw is None else raw
    return header("pax", len(content), kind) + padded(content)


def index(content, hop_bytes=4096):
    return TarIndex.of("a.tar", lambda start, stop: content[start:stop], len(content), hop_bytes)
