"""Read JSON Lines files, by index or sequentially: one JSON value per line; plain, gzip, zstd, xz or bz2."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from fkat_data.datasets.item_index import DatasetOfFiles, IndexedFiles, counter
from fkat_data.errors import arguments
from fkat_data.files.counted_file import CountedFile
from fkat_data.files.lines import LineIndex, lines_of, parsed
from fkat_data.files.opening import Locations, ReadRange, TextFile, changed, local_path, shown_path
from fkat_data.files.remote import Span
from fkat_data.storage.file_identity import FileIdentity

_MAX_LINE_BYTES = 64 << 20
#: Lines of files in stores whose offsets are kept, at four bytes each; of each file, at least as many as of a local one.
#: A line between two that are kept is fetched with those before it.
_OFFSETS_OF_REMOTE, _OFFSETS_OF_FILE = 32 << 20, 2 << 20


class _JsonFiles(DatasetOfFiles):
    """One or more JSON Lines files."""

    def __init__(self, paths: Locations, storage_options: Mapping[str, Any] | None, max_line_bytes: int) -> None:
        super().__init__(paths, storage_options)
        self.max_line_bytes: int = arguments.integer("max_line_bytes", max_line_bytes, minimum=1)
        self._files = [TextFile(path, self.storage_options) for path in self.paths]


def _num_lines(path: str, storage_options: Mapping[str, Any], *, max_line_bytes: int = _MAX_LINE_BYTES) -> int:
    saved = LineIndex.saved(path, storage_options)
    index = saved[0] if saved else LineIndex.of(path, TextFile(path, storage_options).chunks(), max_line_bytes)
    return index.num_lines


_counted_files = counter("json lines", _num_lines)


class JsonDataset(_JsonFiles, IndexedFiles):
    """The lines of one or more JSON Lines files, as a map-style dataset.

    The constructor reads every file once to index its lines, unless ``fkat-data index`` has done so. The index takes 4
    bytes per line, at most 8 MiB per file, or 128 MiB for all files of stores together, and is pickled with the dataset.
    Beyond that, a line is read with those before it. A sample is the JSON value of its line, usually a dict, and is read
    when it is requested. A compressed file is decompressed to an unnamed temporary file, once per process; forked children
    share it.

    The first bytes of a file tell whether it is plain, gzip, xz, bz2 or zstd (``pip install 'fkat_data[json]'``). Blank
    lines do not count.

    Args:
        paths: One or more files, read in this order: local paths, or URIs that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.
        max_line_bytes: Maximum length of a line in bytes, without its newline; a longer line is an error.

    Raises:
        ConfigurationError: ``paths`` is empty, a file is no text, or it needs zstandard, which is not installed; or a
            line is too long.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: Compressed data is damaged or truncated.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(_counted_files)

    def __init__(
        self,
        paths: Locations,
        *,
        storage_options: Mapping[str, Any] | None = None,
        max_line_bytes: int = _MAX_LINE_BYTES,
    ) -> None:
        super().__init__(paths, storage_options, max_line_bytes)
        # Of the files that were indexed, or that proved to have the same text.
        self._identities: list[FileIdentity | None] = []
        self._indices = [self._index(file) for file in self._files]
        # _ends[f]: samples up to and including file f.
        self._ends = np.cumsum([index.num_lines for index in self._indices], dtype=np.int64)

    def save_index(self, before: FileIdentity) -> None:
        """Write the index of the only file beside it, for all who open the file from now on.

        Args:
            before: What the file was before the dataset was made.

        Raises:
            OSError: It cannot be written.
        """
        (file,), (index,) = self._files, self._indices
        index.save(file.path, before, self.storage_options)

    def _index(self, file: TextFile) -> LineIndex:
        is_local = local_path(file.path) is not None
        most = _OFFSETS_OF_FILE if is_local else max(_OFFSETS_OF_FILE, _OFFSETS_OF_REMOTE // len(self._files))
        saved = LineIndex.saved(file.path, self.storage_options, most)
        if saved is None:
            saved = LineIndex.of(file.path, file.chunks(), self.max_line_bytes, most), file.identity_read
        self._identities.append(saved[1])
        return saved[0]

    def _location(self, part: int, row: int) -> str:
        return _location_text(self.paths[part], row)

    def file_digests(self) -> list[int]:
        """Return a number for each file that differs where its text does."""
        return [index.checksum for index in self._indices]

    def _is_open(self, number: int) -> bool:
        return self._files[number].is_open

    def _file(self, number: int) -> TextFile:
        return self._files[number]

    def _spans(self, number: int, rows: list[int]) -> Iterable[Span]:
        index = self._indices[number]
        return (index.block(block) for block in {row // index.stride for row in rows})

    def _samples(self, file_number: int, rows: list[int], read: ReadRange) -> Iterator[Any]:
        file, index = self._files[file_number], self._indices[file_number]
        blocks: dict[int, list[tuple[int, bytes]]] = {}
        for line in rows:
            number = line // index.stride
            if number not in blocks:
                start, stop = index.block(number)
                blocks[number] = list(lines_of(file.path, [read(start, stop)], self.max_line_bytes, start))
        self._check(file_number)
        for line in rows:
            number, line_in_block = divmod(line, index.stride)
            offset, text = blocks[number][line_in_block]
            yield parsed(file.path, line, offset, text)

    def _check(self, file_number: int) -> None:
        """Check that what was read is of the text that was indexed. Reads it again if the file may be another.

        Raises:
            ShardCorruptError: It is not.
        """
        file, index = self._files[file_number], self._indices[file_number]
        if (identity := file.identity()) == self._identities[file_number]:
            return
        # A file that only became longer, even while it is read here, or was copied to another machine, has the same lines.
        if file.checksum(index.num_bytes) != index.checksum:
            raise changed(file.path, "it does not have the text that this dataset was made of")
        self._identities[file_number] = identity  # of before the text was read: a later change is another one


class IterableJsonDataset(_JsonFiles, IterableDataset[Any]):
    """The lines of one or more JSON Lines files in order, as an iterable dataset.

    The samples are those of ``JsonDataset``. It builds no index and writes no file, and holds about 1 MiB in memory.
    In a DataLoader with *n* workers, worker *w* yields the samples *w*, *w + n* and so on, so that each sample comes
    once; every worker reads all files.

    Files are opened when iteration begins. A resume replays this dataset up to its position, while ``JsonDataset``
    skips what was delivered.

    Args:
        paths: One or more files, read in this order: local paths, or URIs that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.
        max_line_bytes: Maximum length of a line in bytes, without its newline; a longer line is an error.

    Raises:
        ConfigurationError: ``paths`` is empty; during iteration, if a file is no text, or needs zstandard, which is not
            installed; or if a line is too long.
        ShardNotFoundError: During iteration, if a file does not exist.
        ShardCorruptError: During iteration, if compressed data is damaged or truncated, or a line is not valid JSON.
    """

    # In the class itself: a subclass may have other samples.
    counted_files: ClassVar[Callable[..., list[CountedFile]]] = staticmethod(_counted_files)

    def __init__(
        self,
        paths: Locations,
        *,
        storage_options: Mapping[str, Any] | None = None,
        max_line_bytes: int = _MAX_LINE_BYTES,
    ) -> None:
        super().__init__(paths, storage_options, max_line_bytes)

    def __iter__(self) -> Iterator[Any]:
        for sample, _ in self.located_samples():
            yield sample

    def located_samples(self) -> Iterator[tuple[Any, tuple[str, int]]]:
        """Yield each sample with its file and its line, which counts from 0 and no blank lines.

        Raises:
            Exception: What iterating over the dataset raises.
        """
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        num_samples = 0
        for file in self._files:
            for line, (offset, text) in enumerate(lines_of(file.path, file.chunks(), self.max_line_bytes)):
                if num_samples % num_workers == worker:
                    yield parsed(file.path, line, offset, text), (file.path, line)
                num_samples += 1

    @staticmethod
    def location_text(location: tuple[str, int]) -> str:
        """Return a location of ``located_samples`` in words."""
        return _location_text(*location)


def _location_text(path: str, line: int) -> str:
    return f"line {line} (from 0, blank lines not counted) of {shown_path(path)}"
