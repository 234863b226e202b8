"""Read the headers of a tar archive: which members it has, and where their bytes are. Nothing is ever extracted."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.interruption import genuine

_BLOCK_BYTES = 512
_END = bytes(_BLOCK_BYTES)
#: Read at once where the members' contents are skipped.
_HEADERS_BYTES = 4 << 10
#: A name, or the records of one pax header.
_MOST_TEXT_BYTES = 1 << 20
#: The largest number that a header's field holds as octal digits: writers put it there if the number is larger.
_LARGEST_OCTAL = 0o77777777777
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
_FILE, _DIRECTORY, _PAX, _PAX_FOR_ALL, _LONG_NAME = (b"0", b"\0", b"7"), b"5", (b"x", b"X"), b"g", b"L"
_DESCRIPTIONS = (*_PAX, _PAX_FOR_ALL, _LONG_NAME)
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"K": "a link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
    b"D": "a directory with contents",
    b"M": "a part of a file of several volumes",
    b"V": "a volume's label",
}


class TarMember(NamedTuple):
    """A regular file in an archive.

    Attributes:
        name: Its path.
        offset: The first byte of its header.
        start: The first byte of its content.
        size_bytes: The size of its content.
    """

    name: str
    offset: int
    start: int
    size_bytes: int


def members_of(archive: str, read: Callable[[int, int], bytes], size_bytes: int, hop_bytes: int) -> Iterator[TarMember]:
    """Yield the regular files of an archive in order, and pass over directories. Reads no content that is large.

    Every header's checksum is compared, and an archive must end with its two blocks of zeros.

    Args:
        archive: The archive, for messages.
        read: Returns the bytes from one offset to another.
        size_bytes: The size of the archive.
        hop_bytes: Contents that are smaller are read; larger ones are skipped.

    Raises:
        ConfigurationError: The archive is compressed.
        ShardCorruptError: It is torn or contradicts itself; or a member is a link, a device, sparse, or has a name
            that is absolute or leads out of its directory.
    """
    window = _Window(archive, read, size_bytes, hop_bytes)
    _check_compression(archive, window.bytes_at(0, min(size_bytes, 8)))
    offset, given = 0, _Given()
    while True:
        if offset + _BLOCK_BYTES > size_bytes:
            raise _torn(archive, offset, size_bytes)
        block = window.bytes_at(offset, _BLOCK_BYTES)
        if block == _END:
            break
        header = _header(archive, offset, block)
        begin = offset + _BLOCK_BYTES
        if header.kind in _DESCRIPTIONS:
            size = header.size_bytes
            _check_size(archive, header, size, size_bytes - begin, _MOST_TEXT_BYTES)
            given.take(archive, offset, header.kind, window.bytes_at(begin, size))
        else:
            name = header.name if given.name is None else given.name
            size = _agreed(archive, header, given.size_bytes)
            is_directory = header.kind == _DIRECTORY or (header.kind == b"\0" and name.endswith("/"))
            _check_size(archive, header, size, size_bytes - begin, 0 if is_directory else size)
            if header.kind not in (*_FILE, _DIRECTORY):
                what = _REFUSED.get(header.kind, f"of the unknown type {header.kind!r}")
                raise _wrong(archive, offset, f"it is {what}; expected files and directories", name)
            _check_name(archive, offset, name)
            if not is_directory:
                yield TarMember(name, offset if given.offset < 0 else given.offset, begin, size)
            given = _Given()
        offset = begin + -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
    if given.offset >= 0:
        raise _wrong(archive, given.offset, "the archive ends after a header that describes the next member")
    window.check_end(offset)


class _Header(NamedTuple):
    name: str
    kind: bytes
    size_bytes: int
    offset: int


@dataclass(slots=True)
class _Given:
    """What headers say about the member that follows them.

    Attributes:
        offset: The first of these headers; -1: there is none.
        name: The member's path, if it is given.
        size_bytes: Its size, if it is given.
        kinds: The types of these headers.
    """

    offset: int = -1
    name: str | None = None
    size_bytes: int | None = None
    kinds: set[bytes] = field(default_factory=set[bytes])

    def take(self, archive: str, offset: int, kind: bytes, content: bytes) -> None:
        """Take what a header says.

        Raises:
            ShardCorruptError: It contradicts itself or another header, or describes a link or a sparse file.
        """
        if kind == _PAX_FOR_ALL:
            records = _records(archive, offset, content)
            if "path" in records or "size" in records:
                raise _wrong(archive, offset, "a pax header gives all members one path or size")
            return
        kind = _PAX[0] if kind in _PAX else kind
        if kind in self.kinds:
            raise _wrong(archive, offset, "two headers of one type describe one member")
        self.kinds.add(kind)
        self.offset = offset if self.offset < 0 else self.offset
        name: bytes | None = None
        if kind == _LONG_NAME:
            name = content.partition(b"\0")[0]
        else:
            records = _records(archive, offset, content)
            name = records.get("path")
            size = records.get("size")
            if size is not None:
                if not size.isdigit() or len(size) > 20:
                    raise _wrong(archive, offset, f"the pax header gives the size {size[:50]!r}")
                self.size_bytes = int(size)
        if name is not None:
            if self.name is not None:
                raise _wrong(archive, offset, "two headers give the name of one member")
            self.name = _text(archive, offset, name)


class _Window:
    """Reads an archive block by block: contents that are small together with the headers, no others."""

    def __init__(self, archive: str, read: Callable[[int, int], bytes], size_bytes: int, hop_bytes: int) -> None:
        self._archive = archive
        self._read = read
        self._size_bytes = size_bytes
        self._hop_bytes = max(hop_bytes, _HEADERS_BYTES)
        self._start = 0
        self._content = b""

    def bytes_at(self, offset: int, count: int) -> bytes:
        """Return bytes of the archive; the caller has compared them with its size."""
        begin = offset - self._start
        if begin < 0 or begin + count > len(self._content):
            is_near = begin - len(self._content) < self._hop_bytes
            stop = min(self._size_bytes, offset + max(count, self._hop_bytes if is_near else _HEADERS_BYTES))
            self._start, self._content = offset, self._read(offset, stop)
            if len(self._content) < stop - offset:
                raise _torn(self._archive, offset + len(self._content), self._size_bytes)
            begin = 0
        return self._content[begin : begin + count]

    def check_end(self, offset: int) -> None:
        """Check that zeros alone follow, at least two blocks of them.

        Raises:
            ShardCorruptError: The archive is torn, or something follows its end.
        """
        if offset + 2 * _BLOCK_BYTES > self._size_bytes:
            raise _torn(self._archive, offset, self._size_bytes)
        while offset < self._size_bytes:
            count = min(self._size_bytes - offset, self._hop_bytes)
            found = self.bytes_at(offset, count).lstrip(b"\0")
            if found:
                at = offset + count - len(found)
                raise _wrong(self._archive, at, "bytes follow the end of the archive; was another one appended to it?")
            offset += count


def _header(archive: str, offset: int, block: bytes) -> _Header:
    stored = _number(archive, offset, "checksum", block[148:156])
    if stored != sum(block) - sum(block[148:156]) + 8 * 32:
        # Some old programs add up signed bytes.
        signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + block[156:]) + 8 * 32
        if stored != signed:
            raise _wrong(archive, offset, f"not a header of a tar file: its checksum is {stored}, expected {signed}")
    name = _text(archive, offset, block[:100].partition(b"\0")[0])
    if block[257:263] == b"ustar\0" and block[345]:
        prefix = _text(archive, offset, block[345:500].partition(b"\0")[0])
        name = f"{prefix}/{name}"
    return _Header(name, block[156:157], _number(archive, offset, "size", block[124:136]), offset)


def _number(archive: str, offset: int, what: str, stored: bytes) -> int:
    if stored[0] == 0x80:
        return int.from_bytes(stored[1:], "big")
    digits = stored.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        raise _wrong(archive, offset, f"its {what} is {stored!r}, which is no number")
    return int(digits, 8)


def _check_compression(archive: str, start: bytes) -> None:
    for magic, compression in _COMPRESSIONS.items():
        if start.startswith(magic):
            raise ConfigurationError(
                "archive",
                archive,
                f"a tar file without compression, to read any member at random; it is {compression}: decompress it",
            )


def _check_size(archive: str, header: _Header, size: int, rest: int, most: int) -> None:
    """Check the size that a header declares: it is within the file and at most what its type allows."""
    if size > most:
        raise _wrong(archive, header.offset, f"it declares {size:,} bytes; its type may have {most:,}", header.name)
    if size > rest:
        reason = f"it declares {size:,} bytes, and the file ends {rest:,} bytes after its header"
        raise _wrong(archive, header.offset, reason, header.name)


def _agreed(archive: str, header: _Header, given: int | None) -> int:
    """Return the size of a member: that of its pax header, if the header's own size does not contradict it."""
    if given is None:
        return header.size_bytes
    if header.size_bytes not in (given, 0, _LARGEST_OCTAL):
        reason = f"its header declares {header.size_bytes:,} bytes, and the pax header before it {given:,}"
        raise _wrong(archive, header.offset, reason, header.name)
    return given


def _records(archive: str, offset: int, content: bytes) -> Mapping[str, bytes]:
    records: dict[str, bytes] = {}
    position = 0
    while position < len(content):
        space = content.find(b" ", position, position + 10)
        digits = content[position : max(space, position)]
        end = position + int(digits) if digits.isdigit() else 0
        keyword, equals, value = content[space + 1 : end - 1].partition(b"=")
        if not space < end <= len(content) or content[end - 1 : end] != b"\n" or not equals or not keyword:
            raise _wrong(archive, offset, f"the pax header has no valid record at its byte {position}")
        name = keyword.decode("utf-8", "replace")
        if name.startswith("GNU.sparse."):
            raise _wrong(archive, offset, "it is a sparse file; expected files and directories")
        if name in records and name in ("path", "size"):
            raise _wrong(archive, offset, f"the pax header gives {name!r} twice")
        records[name] = value
        position = end
    return records


def _text(archive: str, offset: int, name: bytes) -> str:
    try:
        return name.decode()
    except genuine(UnicodeDecodeError):
        raise _wrong(archive, offset, f"its name {name[:100]!r} is not UTF-8") from None


def _check_name(archive: str, offset: int, name: str) -> None:
    if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise _wrong(archive, offset, "its name is empty, absolute, or leads out of its directory", name)


def _torn(archive: str, offset: int, size_bytes: int) -> ShardCorruptError:
    return ShardCorruptError(
        archive,
        f"torn: the file ends at byte {size_bytes:,}, without the two blocks of zeros that end a tar file, which were "
        f"expected from byte {offset:,} on",
    )


def _wrong(archive: str, offset: int, reason: str, name: str | None = None) -> ShardCorruptError:
    member = "header" if name is None else f"member {name[:200]!r}"
    return ShardCorruptError(archive, f"{member} at byte {offset:,}: {reason}", f"{member} at byte {offset:,}")
