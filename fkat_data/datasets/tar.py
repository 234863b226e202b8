"""Read samples of tar files, as webdataset writes them, by index."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from fkat_data.datasets.item_index import MOST_OPEN_IN_STORES, IndexedFiles, counter
from fkat_data.errors import ConfigurationError, arguments
from fkat_data.files.counted_file import CountedFile
from fkat_data.files.lru_cache import LruCache
from fkat_data.files.opening import Locations, RangedFile, ReadRange, changed, names_of, shown_path
from fkat_data.files.remote import Span
from fkat_data.files.tar import DECODERS, KEY, UNSAFE, URL, DecoderName, TarIndex, checked_decode, decoder_names
from fkat_data.storage.file_identity import FileIdentity

_MAX_OPEN_FILES = 32


def _num_samples(path: str, storage_options: Mapping[str, Any], **_: Any) -> int:
    return len(_index_of(path, storage_options)[0].keys)


class TarDataset(IndexedFiles):
    """The samples of one or more tar files, as a map-style dataset.

    The constructor reads the headers of every file once. The index takes 16 bytes for each member and about 100 for
    each sample, and is pickled with the dataset. Of the contents, those of requested samples alone are read, so a
    resume reads nothing of the samples that it steps over. At most 32 files are open at a time.

    A member's key is its path up to the first dot of the file's name; the rest is its extension, in lower case. Members
    of one sample stand side by side. A sample is a dict of ``__key__`` and of a value for each extension in the files;
    None if the sample has no such member. The last part of an extension chooses the decoder: ``jpg``, ``jpeg``,
    ``png`` and ``webp`` give a ``PIL.Image.Image`` (``pip install 'fkat_data[streaming]'``), ``json`` its value,
    ``txt`` a string, ``cls`` an int, ``npy`` a read-only array, and unknown ones bytes. ``pth``, ``pt``, ``pkl``,
    ``pickle`` and ``pyd`` are refused, unless ``allow_unsafe_types`` is set.

    Args:
        paths: One or more tar files, in this order: local paths, or URIs that fsspec supports.
        columns: What a sample has: extensions, ``__key__`` and ``__url__``, the path; None: all but ``__url__``.
        decode: A decoder for all extensions, or decoders for some: ``"bytes"``, ``"image"``, ``"integer"``,
            ``"json"``, ``"npy"``, ``"pickle"``, ``"text"``, ``"torch"``, or a function of the bytes.
        allow_unsafe_types: Whether to read pickles, which runs code of the files' author.
        storage_options: Options for fsspec, for files that are not local.

    Raises:
        ConfigurationError: An argument is invalid, a file is compressed, no member has an extension of ``columns`` or
            ``decode``, or a column holds pickles; or a file has links, devices, names that leave its directory or are
            not UTF-8, or members of a sample that are not side by side or share an extension.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file is not a tar file, is torn, or contradicts itself.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(counter("tar", _num_samples))

    def __init__(
        self,
        paths: Locations,
        columns: Sequence[str] | None = None,
        *,
        decode: Mapping[str, DecoderName | Callable[[bytes], Any]] | DecoderName | Callable[[bytes], Any] | None = None,
        allow_unsafe_types: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(paths, storage_options)
        self._files: LruCache[RangedFile] = LruCache(MOST_OPEN_IN_STORES if self._has_remote else _MAX_OPEN_FILES)
        self._indices: list[TarIndex] = []
        # Of the files that were indexed, or that proved to have the same members.
        self._identities: list[FileIdentity] = []
        for path in self.paths:
            index, identity = _index_of(path, self.storage_options)
            self._indices.append(index)
            self._identities.append(identity)
        extensions = sorted({name for index in self._indices for name in index.columns})
        self.columns: list[str] = [KEY, *extensions] if columns is None else names_of("columns", columns)
        for name in self.columns:
            if name not in (KEY, URL, *extensions):
                raise ConfigurationError("columns", name, f"one of {', '.join((KEY, URL, *extensions))}")
        self._decoders = _decoders(self.paths[0], extensions, decode)
        if not arguments.boolean("allow_unsafe_types", allow_unsafe_types):
            _check_safe(self.paths[0], {name: self._decoders[name] for name in self.columns if name in self._decoders})
        # _ends[f]: samples up to and including file f.
        self._ends = np.cumsum([len(index.keys) for index in self._indices], dtype=np.int64)

    def _location(self, part: int, row: int) -> str:
        return f"row {row}, {self._indices[part].keys[row]!r}, of {shown_path(self.paths[part])}"

    def file_digests(self) -> list[int]:
        """Return a number for each file that differs where its members, or their offsets, do."""
        return [_digest(index) for index in self._indices]

    def _spans(self, number: int, rows: list[int]) -> Iterable[Span]:
        return self._indices[number].spans(self.columns, rows)

    def _reader(self, file_number: int, rows: list[int]) -> ReadRange:
        return partial(self._read, file_number, self._file(file_number), super()._reader(file_number, rows))

    def _samples(self, file_number: int, rows: list[int], read: ReadRange) -> Iterator[dict[str, Any]]:
        index, path = self._indices[file_number], self.paths[file_number]
        values = [index.values(path, name, rows, read, self._decoder(name)) for name in self.columns]
        return (dict(zip(self.columns, sample, strict=True)) for sample in zip(*values, strict=True))

    def _read(self, file_number: int, file: RangedFile, read: ReadRange, start: int, stop: int) -> bytes:
        """Return bytes of the file that was indexed.

        Raises:
            ShardCorruptError: The file has changed since.
        """
        path, before = self.paths[file_number], self._identities[file_number]
        content = read(start, stop)
        identity = file.identity()
        if identity != before:
            if identity.inode == before.inode is not None:
                raise changed(path)
            # Another file, such as a copy on another machine: its members stand where they did.
            index, found = _index_of(path, self.storage_options)
            if _digest(index) != _digest(self._indices[file_number]) or found != identity:
                raise changed(path, "it does not have the members that this dataset was made of")
            self._identities[file_number] = identity
        return content

    def _decoder(self, name: str) -> Callable[[bytes], Any]:
        chosen = self._decoders.get(name, "bytes")
        return chosen if callable(chosen) else DECODERS[chosen]

    def _is_open(self, number: int) -> bool:
        return number in self._files

    def _file(self, number: int) -> RangedFile:
        return self._files.get(number, partial(RangedFile, self.paths[number], self.storage_options))


def _index_of(path: str, storage_options: Mapping[str, Any]) -> tuple[TarIndex, FileIdentity]:
    file = RangedFile(path, storage_options)
    identity = file.identity()
    index = TarIndex.of(path, file.read, file.size_bytes, file.hop_bytes)
    if file.identity() != identity:
        raise changed(path, "it was written while it was read")
    return index, identity


def _digest(index: TarIndex) -> int:
    """Return a number that differs where the members do."""
    names = zlib.crc32(repr((index.keys, index.columns)).encode())
    return zlib.crc32(index.sizes.tobytes(), zlib.crc32(index.starts.tobytes(), names))


def _decoders(path: str, extensions: Sequence[str], decode: Any) -> dict[str, str | Callable[[bytes], Any]]:
    """Return the decoder of each extension, as the caller says."""
    if callable(decode):
        return dict.fromkeys(extensions, decode)
    given: Mapping[str, Any] = cast("Any", decode) if isinstance(decode, Mapping) else {}
    own = {name: decoder for name, decoder in given.items() if callable(decoder)}
    named = {name: "bytes" if name in own else given[name] for name in given} if given else cast("Any", decode)
    return {**decoder_names(path, extensions, checked_decode(named)), **own}


def _check_safe(path: str, decoders: Mapping[str, str | Callable[[bytes], Any]]) -> None:
    for name, decoder in decoders.items():
        if decoder in UNSAFE:
            raise ConfigurationError(
                "allow_unsafe_types",
                False,
                f"True, if you trust the file's author: members of {path} with the extension {name!r} hold pickles, and "
                f"loading them runs code from the file; or choose other columns, or decode={{{name!r}: 'bytes'}}",
            )
