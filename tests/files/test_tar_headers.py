"""Headers of tar archives: as tarfile reads them, or an error that names archive, member and offset."""

import bz2
import gzip
import io
import random
import tarfile

import pytest
from archive_examples import END, archive, header, index, padded, pax
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files.tar_headers import members_of

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
FILE = header("a.txt", 5) + padded(b"hello")
SPARSE = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"a.txt")]


def members(content, hop_bytes=4096):
    return list(members_of("a.tar", lambda start, stop: content[start:stop], len(content), hop_bytes))


@pytest.mark.parametrize("form", FORMATS)
def test_members_are_those_of_tarfile(form):
    long_names = [] if form == tarfile.USTAR_FORMAT else [f"{'long/' * 60}{n}.txt" for n in range(3)]
    accented = [] if form == tarfile.USTAR_FORMAT else ["été/日本.txt"]
    names = [*long_names, *accented, "plain.txt", f"{'folder/' * 15}{'n' * 80}.txt"]
    content = archive([(name, name.encode() * size) for size, name in enumerate(names)], form)
    with tarfile.open(fileobj=io.BytesIO(content)) as reader:
        expected = [(info.name, info.offset, info.offset_data, info.size) for info in reader]
    for hop_bytes in (1, 4096, 1 << 20):
        assert [tuple(member) for member in members(content, hop_bytes)] == expected


def test_large_contents_are_skipped_and_small_ones_read_with_their_headers():
    content = archive([(f"{number}.bin", random.Random(number).randbytes(100_000)) for number in range(20)])
    reads = []

    def read(start, stop):
        reads.append(stop - start)
        return content[start:stop]

    assert len(list(members_of("a.tar", read, len(content), 8192))) == 20
    assert sum(reads) < 25 * 8192
    reads.clear()
    assert len(list(members_of("a.tar", read, len(content), 1 << 20))) == 20
    assert len(reads) == 2


ACCEPTED = {
    "directories": header("d/", kind=b"5") + header("old/", kind=b"\0") + FILE,
    "old header": header("a.txt", 5, b"\0", magic=bytes(8)) + padded(b"hello"),
    "contiguous": header("a.txt", 5, b"7") + padded(b"hello"),
    "binary size": header("a.txt", size_field=b"\x80" + (5).to_bytes(11, "big")) + padded(b"hello"),
    "size in spaces": header("a.txt", size_field=b"         5 \0") + padded(b"hello"),
    "global pax header": pax((b"comment", b"1234"), kind=b"g") + FILE,
    "pax size with zero": pax((b"size", b"5")) + header("a.txt") + padded(b"hello"),
    "pax size with the largest": pax((b"size", b"5")) + header("a.txt", 0o77777777777) + padded(b"hello"),
    "pax size with another one": pax((b"size", b"5")) + header("a.txt", 4) + padded(b"hello"),
    "pax size with no number": pax((b"size", b"5")) + header("a.txt", size_field=b"99999999999\0") + padded(b"hello"),
    "pax path with half a character": pax((b"path", b"a.txt")) + header("é".encode()[:1], 5) + padded(b"hello"),
    "empty pax path": pax((b"path", b""), (b"size", b"")) + FILE,
    "pax size that agrees": pax((b"size", b"5"), (b"mtime", b"1.5")) + FILE,
    "pax path": pax((b"path", b"a.txt")) + header("b", 5) + padded(b"hello"),
    "long name": header("././@LongLink", 6, b"L") + padded(b"a.txt\0") + header("b", 5) + padded(b"hello"),
    "long name with half a character": header("././@LongLink", 6, b"L")
    + padded(b"a.txt\0")
    + header("é".encode()[:1], 5, magic=b"ustar  \0")
    + padded(b"hello"),
    "gnu": header("a.txt", 5, magic=b"ustar  \0", prefix=b"00000000000") + padded(b"hello"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_way_to_write_one_file_is_read(name):
    ((found, _, start, size),) = members(ACCEPTED[name] + END)
    assert (found, size) == ("a.txt", 5)
    assert (ACCEPTED[name] + END)[start : start + size] == b"hello"


def test_an_archive_may_end_with_a_single_block_of_zeros():
    assert [member.name for member in members(FILE + END[:512])] == ["a.txt"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_long_name_that_is_not_ascii_is_read_wherever_it_is_cut(form):
    names = [f"{'f' * 60}/{'n' * cut}{'é日' * 15}.txt" for cut in range(6)]
    assert [member.name for member in members(archive([(name, b"text") for name in names], form))] == names


def test_prefixes_and_signed_checksums_are_read():
    content = header("b.txt", prefix=b"a") + header("é.txt".encode(), signed=True) + END
    assert [member.name for member in members(content)] == ["a/b.txt", "é.txt"]


REFUSED = {
    "empty": (b"", "torn: the file ends at byte 0"),
    "no end": (FILE, "torn: the file ends at byte 1,024"),
    "torn header": (FILE + header("b.txt")[:300], "torn"),
    "torn content": (FILE[:514], "member 'a.txt' at byte 0: it declares 5 bytes, and the file ends 2 bytes after"),
    "no tar": (b"hello world " * 100, "header at byte 0: its checksum is .*no number"),
    "zeros and then more": (FILE + END + FILE, "header at byte 2,048: bytes follow the end"),
    "one block of zeros": (FILE + END[:512] + FILE + END, "header at byte 1,536: bytes follow the end"),
    "checksum": (FILE + header("b.txt", checksum=b"000001\0 ") + END, "byte 1,024: not a header.*checksum"),
    "bomb": (header("a.bin", 1 << 30) + END, "'a.bin' at byte 0: it declares 1,073,741,824 bytes"),
    "bomb in base 256": (header("a", size_field=b"\x80" + b"\xff" * 11) + END, "'a' at byte 0: it declares"),
    "negative size": (header("a", size_field=b"\xff" * 12) + END, "its size is .*no number"),
    "size of letters": (header("a", size_field=b"1_000\0" + b" " * 6) + END, "no number"),
    "no name": (header("") + END, "its name is empty"),
    "directory with a size": (header("a/", 5, b"5") + padded(b"hello") + END, "its type may have 0"),
    "pax size beyond the file": (pax((b"size", b"9" * 15)) + header("a") + END, "it declares 999,999"),
    "pax size of letters": (pax((b"size", b"-1")) + header("a") + END, "gives the size b'-1'"),
    "pax size with many digits": (pax((b"size", b"1" * 5000)) + header("a") + END, "gives the size"),
    "pax path twice": (pax((b"path", b"a"), (b"path", b"b")) + FILE + END, "'path' twice"),
    "pax path with a zero": (pax((b"path", b"a\0b")) + FILE + END, "its name is"),
    "pax record too long": (pax(raw=b"99 path=a\n") + FILE + END, "no valid record at its byte 0"),
    "pax record without a size": (pax(raw=b"path=a\n") + FILE + END, "no valid record"),
    "pax record without equals": (pax(raw=b"8 path\n\n") + FILE + END, "no valid record"),
    "pax header twice": (pax((b"path", b"a")) + pax((b"mtime", b"1")) + FILE + END, "two headers of one type"),
    "pax header for all": (pax((b"path", b"a"), kind=b"g") + FILE + END, "all members one path"),
    "huge pax header": (header("a", 2 << 20, b"x") + bytes(2 << 20) + FILE + END, "its type may have 1,048,576"),
    "pax header that declares more": (header("a", 9000, b"x") + FILE + END, "the file ends"),
    "two names": (
        header("a", 2, b"L") + padded(b"a\0") + pax((b"path", b"b")) + FILE + END,
        "two headers give the name of one member",
    ),
    "end after a pax header": (FILE + pax((b"path", b"b")) + END, "byte 1,024: the archive ends after a header"),
}


#: Archives that another program reads.
UNFIT = {
    "absolute": (header("/etc/passwd.txt") + END, "'/etc/passwd.txt' at byte 0 is of a name that is absolute"),
    "parent": (header("a/../../b.txt") + END, "leads out of its directory"),
    "absolute by its prefix": (header("b.txt", prefix=b"/a") + END, "absolute"),
    "not UTF-8": (header(b"\xff\xfe.txt") + END, "not UTF-8"),
    "hard link": (header("a", kind=b"1") + END, "'a' at byte 0 is a hard link"),
    "symbolic link": (FILE + header("b", kind=b"2") + END, "'b' at byte 1,024 is a symbolic link"),
    "long link": (header("a", 3, b"K") + padded(b"abc") + FILE + END, "a link"),
    "device": (header("a", kind=b"3") + END, "a device"),
    "gnu sparse": (header("a", kind=b"S") + END, "a sparse file"),
    "pax sparse": (pax(*SPARSE) + FILE + END, "a sparse file"),
    "volume": (header("a", kind=b"M") + END, "several volumes"),
    "unknown type": (header("a", kind=b"Z") + END, "unknown type b'Z'"),
    "pax path absolute": (pax((b"path", b"/a")) + FILE + END, "absolute"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_sound_archives_with_members_that_no_sample_can_have_are_not_called_corrupt(name):
    content, message = UNFIT[name]
    for hop_bytes in (1, 1 << 20):
        with pytest.raises(ConfigurationError, match=message) as caught:
            members(content, hop_bytes)
        assert (caught.value.argument, caught.value.value) == ("archive", "'a.tar'")


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_and_torn_archives_are_refused(name):
    content, message = REFUSED[name]
    for hop_bytes in (1, 1 << 20):
        with pytest.raises(ShardCorruptError, match=message) as caught:
            members(content, hop_bytes)
        assert caught.value.shard == "a.tar"


def test_compressed_archives_are_refused_with_the_reason():
    for content in (gzip.compress(FILE + END), bz2.compress(FILE + END), b"\x28\xb5\x2f\xfd" + bytes(100)):
        with pytest.raises(ConfigurationError, match=r"a\.tar.*without compression.*(gzip|bz2|zstd)"):
            members(content)


ORIGINAL = archive([(f"{number}.{kind}", b"%d" % number * 400) for number in range(4) for kind in ("txt", "cls")])


def is_header(position):
    """Headers stand where tarfile finds them, and the end after the last content."""
    with tarfile.open(fileobj=io.BytesIO(ORIGINAL)) as reader:
        infos = list(reader)
    end = infos[-1].offset_data + -(-infos[-1].size // 512) * 512
    return position >= end or any(info.offset <= position < info.offset_data for info in infos)


@settings(max_examples=200)
@given(data=st.data())
def test_flipped_bytes_in_headers_give_the_same_samples_or_an_error(data):
    """One byte of a header cannot change without its checksum."""
    content = bytearray(ORIGINAL)
    blocks = [start for start in range(0, len(content), 512) if is_header(start)]
    for block in data.draw(st.lists(st.sampled_from(blocks), min_size=1, max_size=3, unique=True), "blocks"):
        position = block + data.draw(st.integers(0, 511), "position")
        content[position] = data.draw(st.integers(0, 255), "byte")
    expected = index(ORIGINAL)
    try:
        found = index(bytes(content))
    except (ShardCorruptError, ConfigurationError):
        return
    assert (found.keys, found.columns) == (expected.keys, expected.columns)
    assert (found.starts == expected.starts).all()
    assert (found.sizes == expected.sizes).all()


@settings(max_examples=200)
@given(data=st.data())
def test_any_damage_gives_samples_within_the_file_or_an_error(data):
    form = data.draw(st.sampled_from(FORMATS), "format")
    content = bytearray(archive([(f"{'d/' * 60}{number}.txt", b"x" * number) for number in range(5)], form))
    for _ in range(data.draw(st.integers(0, 6), "flips")):
        content[data.draw(st.integers(0, len(content) - 1), "position")] = data.draw(st.integers(0, 255), "byte")
    content = content[: data.draw(st.integers(0, len(content)), "size")]
    try:
        found = index(bytes(content), data.draw(st.sampled_from([1, 4096, 1 << 20]), "hop"))
    except (ShardCorruptError, ConfigurationError):
        return
    assert (found.starts + found.sizes <= len(content)).all()
