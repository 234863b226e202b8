"""Read files of tokens as other programs write them: windows of one length, or documents."""

import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.datasets.item_index import (
    MOST_OPEN_IN_STORES,
    IndexedFiles,
    counted_from_start,
    counted_from_starts,
)
from fkat_data.errors import ConfigurationError, ShardCorruptError, arguments
from fkat_data.files.lru_cache import LruCache
from fkat_data.files.megatron import Sequences
from fkat_data.files.opening import Locations, RangedFile, ReadRange, changed, shown_path
from fkat_data.files.remote import Span
from fkat_data.files.token_layout import Documents
from fkat_data.files.tokens import (
    TokenFile,
    check_tokens,
    digest_of,
    ended_documents,
    may_be_wrong,
    parts_of_documents,
    token_file,
)
from fkat_data.runtime.background import in_parallel

_MAX_OPEN_FILES = 32
# A digest reads all of a small file, and this many blocks of a larger one, spread over it.
_NUM_BLOCKS = 64
_NUM_THREADS = 16


class _TokenFiles(IndexedFiles):
    """One or more files of tokens, and how their tokens are read."""

    #: What the positions of samples depend on, besides the files.
    _terms: str = "documents"

    def __init__(
        self,
        uris: Locations,
        dtype: object,
        vocab_size: int | None,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(uris, storage_options, argument="uris")
        self.vocab_size: int | None = None
        if vocab_size is not None:
            self.vocab_size = arguments.integer("vocab_size", vocab_size, minimum=1)
        self.files: list[TokenFile] = [token_file(path, dtype, self.storage_options) for path in self.paths]
        self._open: LruCache[RangedFile] = LruCache(MOST_OPEN_IN_STORES if self._has_remote else _MAX_OPEN_FILES)
        self._indices: LruCache[Documents] = LruCache(_MAX_OPEN_FILES)
        self._sequences: LruCache[Sequences] = LruCache(_MAX_OPEN_FILES)

    @property
    def num_tokens(self) -> int:
        """Tokens of all files."""
        return sum(file.num_tokens for file in self.files)

    def file_digests(self) -> list[int]:
        """Return a number for each file that differs where its tokens, its index or the positions of its samples do.

        Of a large file, it depends on 1 MiB of it. A copy on another machine has the same number.

        Raises:
            ShardCorruptError: A file has changed since the dataset was made.
        """
        return self._digests

    @cached_property
    def _digests(self) -> list[int]:
        return in_parallel(self._digest, range(len(self.files)), _NUM_THREADS)

    def _digest(self, number: int) -> int:
        file, found = self._file(number), self.files[number]
        digest = digest_of(file, _NUM_BLOCKS, zlib.crc32(f"{found.dtype} {self._terms}".encode()))
        if file.identity().is_rewritten_since(found.identity):
            raise changed(self.paths[number])
        if found.index_path is None:
            return digest
        return digest_of(RangedFile(found.index_path, self.storage_options), _NUM_BLOCKS, digest)

    def _file(self, number: int) -> RangedFile:
        return self._open.get(number, partial(RangedFile, self.paths[number], self.storage_options))

    def _documents(self, number: int) -> Documents:
        self.files[number].check_index()
        return self._indices.get(number, partial(self.files[number].documents, self.storage_options))

    def _reader(self, file_number: int, rows: list[int]) -> ReadRange:
        if self._has_remote or self.files[file_number].num_sequences:
            return super()._reader(file_number, rows)
        # Of a local file, windows are read into their array.
        return lambda start, stop: self._file(file_number).read(start, stop)

    def _is_open(self, number: int) -> bool:
        return number in self._open

    def _spans(self, number: int, rows: list[int]) -> Iterable[Span]:
        found = self.files[number]
        size_bytes = np.dtype(found.dtype).itemsize
        spans: Iterable[Span] = (self._span(number, row) for row in rows)
        if found.num_sequences:
            spans = list(spans)
            sequences = self._sequences.get(number, partial(found.sequences, self.storage_options))
            for start, stop in spans:
                sequences.compare(start * size_bytes, stop * size_bytes)
        return ((found.first_byte + start * size_bytes, found.first_byte + stop * size_bytes) for start, stop in spans)

    @abstractmethod
    def _span(self, number: int, row: int) -> tuple[int, int]:
        """Return the first token of a sample in its file, and the one behind its last."""

    def _read_windows(
        self, number: int, starts: list[int], size: int, read: ReadRange, out: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.int64]:
        """Return as many tokens of a file behind each start, shape (len(starts), size).

        Raises:
            ShardCorruptError: A token is none, or the file has changed since the dataset was made.
            OSError: The file cannot be read.
        """
        file, found = self._file(number), self.files[number]
        dtype, first_byte = np.dtype(found.dtype), found.first_byte
        stored: npt.NDArray[Any] = np.empty((len(starts), size), dtype)
        for row, start in zip(stored, starts, strict=True):
            file.read_into(row, first_byte + start * dtype.itemsize, read)
        if file.identity().is_rewritten_since(found.identity):
            raise changed(self.paths[number])
        tokens = np.empty(stored.shape, np.int64) if out is None else out
        np.copyto(tokens, stored, casting="unsafe")
        if may_be_wrong(dtype, self.vocab_size):
            for index, start in enumerate(starts):
                check_tokens(self.paths[number], start, stored[index], tokens[index], self.vocab_size)
        return tokens


class TokenWindows(_TokenFiles):
    """Windows of ``window_size`` tokens of one or more files, as a map-style dataset.

    Item *i* is window *i* of the files' tokens, documents joined as they are stored: an int64 tensor of shape
    (window_size,). Windows do not cross files; what is left at the end of a file, too few tokens for a window, is not
    read. With ``stride=window_size - 1`` each window begins with the last token of the one before, so that
    ``window[:-1]`` are inputs and ``window[1:]`` labels, and each token is a label once.

    What is in a file says what it is: ``.bin`` with ``.idx`` beside it (Megatron-LM, fairseq), ``.bin`` with the header
    of llm.c, ``.npy``, and ``.ds`` with ``.ds.index`` (datatrove). A ``.bin`` without any, as nanoGPT writes it, needs
    ``dtype``. The constructor reads headers and sizes alone; tokens are read when they are asked for. At most 32 files
    are open at a time.

    Args:
        uris: One or more files, in this order: local paths, or URIs that fsspec supports.
        window_size: Tokens of a window, at least 1.
        stride: Tokens from the beginning of a window to that of the next; None: ``window_size``.
        dtype: The type of the tokens in files that do not say it, such as ``"uint16"``.
        boundaries: Whether an item is a dict, as a ``PackedDataset`` gives them: ``tokens``; ``document_ids``, int32,
            from 0 in each window; ``position_ids``, int64, a token's position in the part of its document that is in the
            window; ``cu_seqlens``, int32, where these parts begin, and the window's end. ``collate_packed`` makes
            microbatches of them.
        end_of_document: The token that ends a document, where no index says it, or instead of the index.
        vocab_size: Tokens that are not below it are an error; None: any is read.
        storage_options: Options for fsspec, for files that are not local.

    Raises:
        ConfigurationError: An argument is invalid, a file needs ``dtype`` or has another, or has no documents where
            ``boundaries`` asks for them.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A header or an index contradicts itself, or does not fit its file.
    """

    def __init__(
        self,
        uris: Locations,
        window_size: int,
        *,
        stride: int | None = None,
        dtype: object = None,
        boundaries: bool = False,
        end_of_document: int | None = None,
        vocab_size: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.window_size: int = arguments.integer("window_size", window_size, minimum=1)
        self.stride: int = self.window_size if stride is None else arguments.integer("stride", stride, minimum=1)
        self._terms = f"windows of {self.window_size} by {self.stride}"
        self._has_boundaries = arguments.boolean("boundaries", boundaries)
        self._end_of_document: int | None = None
        if end_of_document is not None:
            self._end_of_document = arguments.integer("end_of_document", end_of_document, minimum=0)
            if not boundaries:
                raise ConfigurationError("end_of_document", end_of_document, "boundaries=True with it, or None")
        super().__init__(uris, dtype, vocab_size, storage_options)
        if boundaries and end_of_document is None:
            _check_indexed(self.files, "end_of_document=, the token that ends a document")
        counts = [max(0, (file.num_tokens - self.window_size) // self.stride + 1) for file in self.files]
        self._ends = np.cumsum(counts, dtype=np.int64)

    def _span(self, number: int, row: int) -> tuple[int, int]:
        return row * self.stride, row * self.stride + self.window_size

    def _samples(self, file_number: int, rows: list[int], read: ReadRange) -> Iterable[Any]:
        starts = [row * self.stride for row in rows]
        windows = self._read_windows(file_number, starts, self.window_size, read)
        if not self._has_boundaries:
            return torch.from_numpy(windows).unbind()
        return (self._with_boundaries(file_number, *window) for window in zip(starts, windows, strict=True))

    @property
    def item_shape(self) -> tuple[int, ...] | None:
        """The shape of a window; None: it has boundaries, and is no tensor."""
        return None if self._has_boundaries else (self.window_size,)

    @property
    def item_dtype(self) -> torch.dtype:
        """The dtype of a window."""
        return torch.int64

    def stack_into(self, indices: Sequence[int], out: npt.NDArray[np.int64]) -> None:
        """Read windows into the rows of an array, shape (len(indices), window_size); raise as ``__getitems__``."""
        numbers = counted_from_starts(indices, len(self), "sample")
        for number, positions, rows, read in self._in_files(numbers):
            starts = [row * self.stride for row in rows]
            if len(starts) == len(out):
                self._read_windows(number, starts, self.window_size, read, out)
            else:
                out[positions] = self._read_windows(number, starts, self.window_size, read)

    def _with_boundaries(self, number: int, start: int, tokens: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
        if self._end_of_document is None:
            begun = [each - start for each in self._documents(number).starts_within(start, start + len(tokens))]
        else:
            begun = ended_documents(tokens, self._end_of_document)
        return {name: torch.from_numpy(values) for name, values in parts_of_documents(tokens, begun).items()}

    def _location(self, part: int, row: int) -> str:
        return f"window {row}, from token {row * self.stride}, of {shown_path(self.paths[part])}"


class TokenDocuments(_TokenFiles):
    """The documents of one or more files of tokens, as a map-style dataset.

    Item *i* is document *i*: an int64 tensor of as many tokens as it has. The files are those of ``TokenWindows`` that
    have an index beside them: Megatron-LM's ``.bin`` and datatrove's ``.ds``. The constructor reads headers and sizes
    alone, and maps the index when a document is asked for.

    Args:
        uris: One or more files, in this order: local paths, or URIs that fsspec supports.
        dtype: The type of the tokens; None: what the index says.
        vocab_size: Tokens that are not below it are an error; None: any is read.
        storage_options: Options for fsspec, for files that are not local.

    Raises:
        ConfigurationError: An argument is invalid, or a file has no index.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: An index contradicts itself, or does not fit its file.
    """

    def __init__(
        self,
        uris: Locations,
        *,
        dtype: object = None,
        vocab_size: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(uris, dtype, vocab_size, storage_options)
        _check_indexed(self.files, "TokenWindows(..., end_of_document=) for files without one")
        self._ends = np.cumsum([file.num_documents for file in self.files], dtype=np.int64)

    @property
    def lengths(self) -> npt.NDArray[Any]:
        """Tokens of each document, shape (len(self),), integers: of one file whose index has them, that mapped array.

        Raises:
            ShardCorruptError: An index is damaged.
        """
        parts = [self._documents(number).lengths() for number in range(len(self.files))]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def sort_key(self, index: int) -> int:
        """Return the tokens of a document, for datasets that order by length."""
        document = counted_from_start(index, len(self))
        number = int(np.searchsorted(self._ends, document, side="right"))
        start, stop = self._span(number, document - int(self._ends[number - 1] if number else 0))
        return stop - start

    def _samples(self, file_number: int, rows: list[int], read: ReadRange) -> Iterator[torch.Tensor]:
        for start, stop in [self._span(file_number, row) for row in rows]:
            yield torch.from_numpy(self._read_windows(file_number, [start], stop - start, read)[0])

    def _span(self, number: int, row: int) -> tuple[int, int]:
        documents = self._documents(number)
        start, stop = documents.start_of(row), documents.start_of(row + 1)
        if stop < start:
            index = str(self.files[number].index_path)
            raise ShardCorruptError.of_field(index, f"start of document {row + 1}", f"at least {start}", stop)
        return start, stop

    def _location(self, part: int, row: int) -> str:
        return f"document {row} of {shown_path(self.paths[part])}"


def _check_indexed(files: Sequence[TokenFile], otherwise: str) -> None:
    for file in files:
        if file.index_path is None:
            expected = f"files whose index says where documents are (.bin with .idx, .ds with .ds.index); {otherwise}"
            raise ConfigurationError("uris", file.path, expected)
