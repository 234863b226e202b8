"""Functions for ``window_fn`` of a DataLoader: they make rows of the samples of a window."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import torch

from fkat_data.datasets.best_fit import best_fit
from fkat_data.datasets.packed_rows import TOO_LONG, Fragment, fields_of, packed_sequence, padding_of
from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import choice, integer
from fkat_data.errors.wording import Described
from fkat_data.worker.windows import version_of

_METHODS = ("best_fit", "concatenate")


class Filter:
    """Leaves out samples: microbatches stay full.

    Args:
        keep: Called with a sample; returns whether it stays.

    Raises:
        ConfigurationError: ``keep`` cannot be called.
    """

    def __init__(self, keep: Callable[[Any], bool]) -> None:
        if not callable(keep):
            raise ConfigurationError("keep", keep, "a function of a sample")
        self._keep = keep

    @property
    def version(self) -> str:
        """What a state says of it: a resume with another ``keep`` is refused."""
        return f"Filter({version_of([self._keep])})"

    def __call__(self, samples: list[Any]) -> list[Any]:
        """Return the samples that stay, in order."""
        return [sample for sample in samples if self._keep(sample)]


class Pack(Described):
    """Packs the documents of a window into sequences of one length: rows with the fields of a ``PackedDataset``.

    Nothing is carried over to the next window, so nothing of it is ever saved. Collate rows by ``collate_packed``.

    Args:
        sequence_length: Tokens of a sequence.
        method: ``"best_fit"``: whole documents, each into the sequence that it leaves with the least room, the longest
            first. ``"concatenate"``: one document behind the other, cut where a sequence ends; the window's last sequence
            is padded.
        too_long: What becomes of documents that are longer than a sequence: ``"raise"``, ``"skip"``, ``"truncate"``, or
            ``"split"`` them into fragments that all fill a sequence except the last. None: ``"raise"`` for
            ``"best_fit"``, ``"split"`` for ``"concatenate"``.
        fields: Entries to pack where samples are mappings; all have as many tokens. Other samples are the only field.
        padding: The value behind the last document, for each field that it names; 0 for the others.
        max_document_length: Tokens of a document that is not too long, at most ``sequence_length`` with ``"best_fit"``;
            None: a sequence's.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        sequence_length: int,
        method: Literal["best_fit", "concatenate"] = "best_fit",
        too_long: Literal["raise", "skip", "split", "truncate"] | None = None,
        fields: Sequence[str] = ("tokens",),
        padding: Mapping[str, float] | None = None,
        max_document_length: int | None = None,
    ) -> None:
        self._sequence_length = integer("sequence_length", sequence_length, minimum=1)
        self._method = choice("method", method, _METHODS)
        self._max_document_length = max_document_length
        if max_document_length is not None:
            most = self._sequence_length if method == "best_fit" else None
            integer("max_document_length", max_document_length, minimum=1, maximum=most)
        default = "raise" if method == "best_fit" else "split"
        self._too_long = default if too_long is None else choice("too_long", too_long, TOO_LONG)
        self._padding = padding_of(fields, padding)
        self._fields = list(self._padding)

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("sequence_length", self._sequence_length),
            ("method", self._method),
            ("too_long", self._too_long),
            ("fields", self._fields),
            ("padding", self._padding),
            *([("max_document_length", longest)] if (longest := self._max_document_length) is not None else []),
        ]

    @property
    def version(self) -> str:
        """What a state says of it: a resume with other arguments is refused."""
        # A line shows no contents of lists and dicts, and has an end.
        if (self._padding, self._max_document_length) == ({"tokens": 0}, None):
            return repr(self)
        return f"{self!r}, padding={self._padding}, max_document_length={self._max_document_length}"

    def __call__(self, samples: list[Any]) -> list[dict[str, torch.Tensor]]:
        """Return the sequences: in the order of the samples, those packed by best fit in that of their first documents.

        Raises:
            ConfigurationError: A document is too long, or a sample has no such fields of one length.
        """
        documents = [self._document(index, sample) for index, sample in enumerate(samples)]
        parts = self._parts([len(document[self._fields[0]]) for document in documents])
        sequences = self._joined(parts) if self._method == "concatenate" else self._fitted(parts)
        return [self._sequence(documents, sequence) for sequence in sequences]

    def _document(self, index: int, sample: Any) -> dict[str, torch.Tensor]:
        document = fields_of(sample, self._fields, f"at position {index} of the window")
        shapes = {field: list(value.shape) for field, value in document.items()}
        if any(len(shape) != 1 for shape in shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
            expected = "one-dimensional fields of one length"
            raise ConfigurationError("samples", f"shapes {shapes} at position {index} of the window", expected)
        return document

    def _parts(self, lengths: list[int]) -> list[Fragment]:
        most, parts = self._max_document_length or self._sequence_length, list[Fragment]()
        # Joined documents are cut where a sequence ends, and nowhere else unless the caller says so.
        is_whole = self._method == "concatenate" and self._max_document_length is None
        for index, length in enumerate(lengths):
            if length > most and self._too_long == "raise":
                found = f"{length} tokens at position {index} of the window"
                expected = f"at most {most}, or too_long='skip', 'truncate' or 'split'"
                raise ConfigurationError("samples", found, expected)
            if length > most and self._too_long == "skip":
                continue
            kept = min(length, most) if self._too_long == "truncate" else length
            size = max(1, kept) if is_whole else most
            parts += [Fragment(index, start, min(size, kept - start)) for start in range(0, kept, size)]
        return parts

    def _fitted(self, parts: list[Fragment]) -> list[list[Fragment]]:
        bins = best_fit([part.length for part in parts], self._sequence_length)
        return [[parts[index] for index in indices] for indices in sorted(map(sorted, bins))]

    def _joined(self, parts: list[Fragment]) -> list[list[Fragment]]:
        size = self._sequence_length
        ends = [*accumulate(part.length for part in parts)]
        sequences: list[list[Fragment]] = [[] for _ in range(-(-ends[-1] // size))] if ends else []
        for part, end in zip(parts, ends, strict=True):
            begin = offset = end - part.length
            while offset < end:
                stop = min(end, (offset // size + 1) * size)
                sequences[offset // size].append(Fragment(part.document, part.start + offset - begin, stop - offset))
                offset = stop
        return sequences

    def _sequence(self, documents: list[dict[str, torch.Tensor]], parts: list[Fragment]) -> dict[str, torch.Tensor]:
        values = {
            field: [documents[part.document][field][part.start : part.start + part.length] for part in parts]
            for field in self._fields
        }
        return packed_sequence(values, [part.length for part in parts], self._sequence_length, self._padding)
