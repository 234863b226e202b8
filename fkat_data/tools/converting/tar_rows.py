"""Read tar files as webdataset writes them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fkat_data.archives.member_decoding import DecoderName
from fkat_data.datasets import TarDataset
from fkat_data.tools.converting.row_source import RowSource

__all__ = ["TarSource"]

_ROWS_AT_ONCE = 100
#: The encodings of extensions; all others are bytes. ``bytes`` of a JPEG file are what its encoding stores.
_ENCODINGS = {
    "__key__": "str",
    "txt": "str",
    "cls": "int",
    "json": "json",
    "npy": "ndarray",
    "jpg": "jpeg",
    "jpeg": "jpeg",
    "png": "png",
}

#: The encodings of columns that become ``json`` where a sample lacks the member.
_NULLABLE = ("str", "int", "ndarray")


class TarSource(RowSource):
    """A tar file without compression; each sample is a row. Nothing in it is unpickled."""

    def __init__(self, path: str) -> None:
        self.name = path

    def columns(self, *, allows_nulls: bool = False) -> dict[str, str]:
        """Return encodings by the extensions of the file's members."""
        dataset = TarDataset(self.name, decode="bytes")
        found = {name: _ENCODINGS.get(name.rpartition(".")[2], "bytes") for name in dataset.columns}
        if allows_nulls:
            for row in _rows(dataset):
                lacking = [name for name, value in row.items() if value is None and found[name] in _NULLABLE]
                found.update(dict.fromkeys(lacking, "json"))
        return found

    def names(self) -> Iterable[str]:
        """Return the extensions of the file's members."""
        return TarDataset(self.name, decode="bytes").columns

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the samples. A missing member of a ``json`` column is null."""
        present = TarDataset(self.name, decode="bytes").columns
        chosen = [name for name in columns if name in present]
        decode: dict[str, DecoderName | Callable[[bytes], Any]] = {
            name: _decoder_of(columns[name])
            for name in chosen
            # As JSON, a value is what its extension says.
            if columns[name] != "json" and not name.startswith("__")
        }
        absent = {name: None for name, encoding in columns.items() if encoding == "json"}
        for row in _rows(TarDataset(self.name, chosen, decode=decode)):
            yield {**absent, **{name: value for name, value in row.items() if value is not None}}


def _rows(dataset: TarDataset) -> Iterator[dict[str, Any]]:
    for begin in range(0, len(dataset), _ROWS_AT_ONCE):
        yield from dataset.__getitems__(range(begin, min(begin + _ROWS_AT_ONCE, len(dataset))))


def _decoder_of(encoding: str) -> DecoderName:
    """Return the decoder of what a writer takes; it takes bytes that the encoding can decode."""
    if encoding.startswith("ndarray"):
        return "npy"
    return "integer" if encoding.startswith(("int", "uint", "str_int")) else "bytes"
