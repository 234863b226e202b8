"""Read the headers of a tar archive: which members it has, and where their bytes are. Nothing is ever extracted."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files.signatures import START_BYTES, signature_of
from fkat_data.runtime.interruption import genuine

_BLOCK_BYTES = 512
_END = bytes(_BLOCK_BYTES)
#: Read at once where the members' contents are skipped.
_HEADERS_BYTES = 4 << 10
#: A name, or the records of one pax header.
_MOST_TEXT_BYTES = 1 << 20
_FILE, _DIRECTORY, _PAX, _PAX_FOR_ALL, _LONG_NAME = (b"0", b"\0", b"7"), b"5", (b"x", b"X"), b"g", b"L"
_DESCRIPTIONS = (*_PAX, _PAX_FOR_ALL, _LONG_NAME)
_REFUSED = {
    b"1": "a hard link (tar --hard-dereference writes the file instead)",
    b"2": "a symbolic link (tar --dereference writes the file instead)",
    b"K": "a link (tar --dereference --hard-dereference writes the file instead)",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file (tar without --sparse writes it whole)",
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

    Every header's checksum is compared, and an archive must end with a block of zeros, after which are zeros alone: all
    members are there then. Fields of a header that another one overrides are not looked at.

    Args:
        archive: The archive, for messages.
        read: Returns the bytes from one offset to another.
        size_bytes: The size of the archive.
        hop_bytes: Contents that are smaller are read; larger ones are skipped.

    Raises:
        ConfigurationError: The archive is compressed; or a member is a link, a device, sparse, or has a name that is
            absolute, leads out of its directory or is not UTF-8.
        ShardCorruptError: It is torn or contradicts itself.
    """
    window = _Window(archive, read, size_bytes, hop_bytes)
    _check_kind(archive, window.bytes_at(0, min(size_bytes, START_BYTES)))
    offset, given = 0, _Given()
    while True:
        if offset + _BLOCK_BYTES > size_bytes:
            raise _torn(archive, offset, size_bytes)
        block = window.bytes_at(offset, _BLOCK_BYTES)
        if block == _END:
            break
        kind = _kind(archive, offset, block)
        begin = offset + _BLOCK_BYTES
        if kind in _DESCRIPTIONS:
            size = _size(archive, offset, block)
            _check_size(archive, offset, _shown_name(block), size, size_bytes - begin, _MOST_TEXT_BYTES)
            given.take(archive, offset, kind, window.bytes_at(begin, size))
        else:
            name = _name(archive, offset, block) if given.name is None else given.name
            size = _size(archive, offset, block) if given.size_bytes is None else given.size_bytes
            is_directory = kind == _DIRECTORY or (kind == b"\0" and name.endswith("/"))
            _check_size(archive, offset, name, size, size_bytes - begin, 0 if is_directory else size)
            if kind not in (*_FILE, _DIRECTORY):
                raise refused(archive, offset, name, _REFUSED.get(kind, f"of the unknown type {kind!r}"))
            _check_name(archive, offset, name)
            if not is_directory:
                yield TarMember(name, offset if given.offset < 0 else given.offset, begin, size)
            given = _Given()
        offset = begin + -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
    if given.offset >= 0:
        raise _wrong(archive, given.offset, "the archive ends after a header that describes the next member")
    window.check_end(offset)


@dataclass(slots=True)
class _Given:
    """The facts that headers give about the member that follows them.

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
            ShardCorruptError: It contradicts itself or another header.
            ConfigurationError: It describes a sparse file, or a name that is not UTF-8.
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
            # An empty value leaves it to the member's own header.
            name = records.get("path") or None
            size = records.get("size") or None
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
        """Check that zeros alone follow. A second block of them may be missing, as some writers have it.

        Raises:
            ShardCorruptError: Something follows the end of the archive.
        """
        while offset < self._size_bytes:
            count = min(self._size_bytes - offset, self._hop_bytes)
            found = self.bytes_at(offset, count).lstrip(b"\0")
            if found:
                at = offset + count - len(found)
                raise _wrong(self._archive, at, "bytes follow the end of the archive; was another one appended to it?")
            offset += count


def _kind(archive: str, offset: int, block: bytes) -> bytes:
    """Return the type of the member that a header describes, once the header's checksum agrees."""
    stored = _number(archive, offset, "checksum", block[148:156])
    if stored != sum(block) - sum(block[148:156]) + 8 * 32:
        # Some old programs add up signed bytes.
        signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + block[156:]) + 8 * 32
        if stored != signed:
            raise _wrong(archive, offset, f"not a header of a tar file: its checksum is {stored}, expected {signed}")
    return block[156:157]


def _name(archive: str, offset: int, block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return _text(archive, offset, name)


def _shown_name(block: bytes) -> str:
    return block[:100].partition(b"\0")[0].decode(errors="replace")


def _size(archive: str, offset: int, block: bytes) -> int:
    return _number(archive, offset, "size", block[124:136])


def _number(archive: str, offset: int, what: str, stored: bytes) -> int:
    if stored[0] == 0x80:
        return int.from_bytes(stored[1:], "big")
    digits = stored.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        raise _wrong(archive, offset, f"its {what} is {stored!r}, which is no number")
    return int(digits, 8)


def _check_kind(archive: str, start: bytes) -> None:
    kind = signature_of(start)
    if kind is None or kind.name == "tar":
        return
    remedy = kind.remedy or "decompress it"
    expected = f"a tar file without compression, to read any member at random; it is {kind.name}: {remedy}"
    raise ConfigurationError("archive", archive, expected)


def _check_size(archive: str, offset: int, name: str, size: int, rest: int, most: int) -> None:
    """Check a declared size: it is within the file and at most what the member's type allows."""
    if size > most:
        raise _wrong(archive, offset, f"it declares {size:,} bytes; its type may have {most:,}", name)
    if size > rest:
        raise _wrong(
            archive, offset, f"it declares {size:,} bytes, and the file ends {rest:,} bytes after its header", name
        )


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
            raise refused(archive, offset, "", _REFUSED[b"S"])
        if name in records and name in ("path", "size"):
            raise _wrong(archive, offset, f"the pax header gives {name!r} twice")
        records[name] = value
        position = end
    return records


def _text(archive: str, offset: int, name: bytes) -> str:
    try:
        return name.decode()
    except genuine(UnicodeDecodeError):
        shown = name.decode(errors="backslashreplace")
        raise refused(archive, offset, shown, "of a name that is not UTF-8", "names in UTF-8") from None


def _check_name(archive: str, offset: int, name: str) -> None:
    if not name or "\0" in name:
        raise _wrong(archive, offset, "its name is empty or has a zero", name)
    if name.startswith("/") or ".." in name.split("/"):
        what = "of a name that is absolute or leads out of its directory"
        raise refused(archive, offset, name, what, "relative names, as tar writes them without --absolute-names")


def refused(
    archive: str, offset: int, name: str, what: str, expected: str = "files and directories"
) -> ConfigurationError:
    """Return the error of a member that is sound, and that no sample can have."""
    member = f"member {name[:200]!r} at byte {offset:,}" if name else f"the member at byte {offset:,}"
    return ConfigurationError("archive", archive, f"{expected}; {member} is {what}")


def _torn(archive: str, offset: int, size_bytes: int) -> ShardCorruptError:
    return ShardCorruptError(
        archive,
        f"torn: the file ends at byte {size_bytes:,}, without the blocks of zeros that end a tar file, which were "
        f"expected from byte {offset:,} on",
    )


def _wrong(archive: str, offset: int, reason: str, name: str | None = None) -> ShardCorruptError:
    member = "header" if name is None else f"member {name[:200]!r}"
    return ShardCorruptError(archive, f"{member} at byte {offset:,}: {reason}", f"{member} at byte {offset:,}")
