"""Convert files to a dataset of MDS shards."""

import multiprocessing
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, Unpack, get_args

from fkat_data.datasets import TarDataset
from fkat_data.errors import ConfigurationError, SampleError, ShardNotFoundError, arguments
from fkat_data.files.formats import FORMATS
from fkat_data.files.index import INDEX_NAME
from fkat_data.files.signatures import COMPRESSED_SUFFIXES, REFUSED_SUFFIXES
from fkat_data.files.stored import named
from fkat_data.files.tar import DecoderName
from fkat_data.runtime.interruption import genuine
from fkat_data.storage.folders import data_names, files_below, sample_names, say_partitions
from fkat_data.storage.location import machine_path
from fkat_data.storage.patterns import compiled, literal_where, may_be_above, unescaped, wildcard_at
from fkat_data.streaming.writing import IndexLocation, MDSWriter, WriterSettings, natural_key, write_parallel
from fkat_data.tools.conversion_columns import EncodedColumn, FoundColumns
from fkat_data.tools.conversion_texts import JsonLinesSource, RowSource, SeparatedSource

#: The kinds of input.
Kind: TypeAlias = Literal["jsonl", "csv", "tsv", "parquet", "arrow", "tar", "folder"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PARTS_FOR_EACH_WORKER = 4
_ROWS_BETWEEN_CALLS = 100


def convert(
    paths: str | Path | Sequence[str | Path],
    out: IndexLocation,
    *,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
    nulls: Literal["refuse", "json"] = "refuse",
    num_workers: int = 1,
    progress: Callable[[int], None] | None = None,
    **settings: Unpack[WriterSettings],
) -> int:
    """Write the rows of files as one MDS dataset, in the order of ``paths``.

    Args:
        paths: One or more files, patterns of files such as ``shards/*.tar``, or directories. If a directory has tables
            (JSON lines, CSV, ...) or tar files, they and those of the same kinds in its folders are converted, in
            natural order; so are those in its folders alone, if nothing else is there. Otherwise every file below it
            is a sample. Hidden files, and what is written beside data, are left out (``FsShardSampler`` has the rule).
            What exists is meant as it is written, also if it looks like a pattern.
        out: The dataset's directory, as for ``MDSWriter``.
        kind: One of ``KINDS``; None: by file name.
        columns: Encodings that replace those inferred from the data. An inferred number keeps every value: of
            separated values, a later ``007`` is an error, and a chosen ``int`` takes it for 7.
        only: The columns to keep; empty: all of them.
        nulls: What happens to null, and to an empty list of numbers, in a column whose encoding cannot store it.
            ``"refuse"``: it is an error. ``"json"``: the whole column is ``json``, in all files. Finding these columns
            takes a second look at all rows. A column of bytes refuses null in any case.
        num_workers: The number of processes. More than 1 write a directory of shards for each file, and one index.
        progress: Called with the number of rows so far, from time to time; with several processes, each time the next
            file is written.
        settings: The other arguments of ``MDSWriter``.

    Returns:
        The number of samples.

    Raises:
        ConfigurationError: An argument is invalid, a file's kind is unknown, it exceeds a limit or is none of a table, or
            a value would be changed by the encoding that other rows suggest. The message names the file, the row and
            the column.
        FileExistsError: ``out`` is not empty.
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file is damaged.
        SampleError: A row does not fit the encodings of its columns, or has a column that the first rows lack. The
            message names the column and the value, and notes name the file and the row.
    """
    allows_nulls = arguments.choice("nulls", nulls, ("refuse", "json")) == "json"
    num_workers = arguments.integer("num_workers", num_workers, minimum=1)
    # A string is a sequence of strings, too.
    locations = [paths] if isinstance(paths, (str, Path)) else paths
    sources = [source for location in locations for source in sources_of(location, kind, num_workers, columns or ())]
    if not sources:
        raise ConfigurationError("paths", paths, "at least one file")
    chosen = _chosen(sources, columns or {}, only, allows_nulls)
    if not chosen:
        raise ConfigurationError("paths", sources[0].name, "a file with at least one row, which tells the columns")
    if num_workers == 1:
        with MDSWriter(columns=chosen, out=out, **settings) as writer:
            for source in sources:
                _write(writer, source, chosen, not only, progress)
        return writer.num_samples
    keep_local, exist_ok = settings.pop("keep_local", False), settings.pop("exist_ok", False)
    make_writer = partial(MDSWriter, columns=chosen, **settings)
    with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("spawn")) as executor:
        return write_parallel(
            make_writer,
            partial(_rows_of, chosen, not only),
            sources,
            out=out,
            executor=executor,
            keep_local=keep_local,
            exist_ok=exist_ok,
            storage_options=settings.get("storage_options"),
            progress=progress,
        )


def sources_of(
    path: str | Path, kind: Kind | None = None, num_workers: int = 1, given: Collection[str] = ()
) -> list[RowSource]:
    """Return the sources to convert at a path.

    Args:
        path: A file, a pattern of files, or a directory.
        kind: One of ``KINDS``; None: by file name.
        num_workers: The number of processes, which decides into how many parts a folder of samples is divided.
        given: The columns whose encoding the user has chosen.

    Raises:
        ConfigurationError: The kind is unknown.
        ShardNotFoundError: A folder has no files, or a pattern matches none.
    """
    if kind is not None:
        arguments.choice("kind", kind, KINDS)
    root = machine_path("paths", path, "files or directories of this machine")
    if root.is_dir():
        tables = [] if kind == "folder" else _tables_below(root, kind)
        if not tables and kind not in (None, "folder"):
            reason = f"no file in it has a name of the kind {kind}; {root}/* takes all of its files for that"
            raise ShardNotFoundError(str(root), reason)
        if not tables:
            num_parts = 1 if num_workers == 1 else num_workers * _PARTS_FOR_EACH_WORKER
            return list(FolderSource.parts_of(str(root), num_parts))
        return [_source(str(root / name), kind or _kind_of(name), given) for name in tables]
    files = _files_at(root)
    if not files:
        raise ShardNotFoundError(str(root), "no file matches")
    return [_source(file, kind or _kind_of(file), given) for file in files]


def files_of_lines(path: Path) -> list[str]:
    """Return the files of JSON lines at a path, in natural order; none if it has none.

    Args:
        path: A file, a pattern of files, or a directory.

    Raises:
        ShardNotFoundError: A pattern matches no file.
    """
    if path.is_dir():
        return [str(path / name) for name in _tables_below(path, "jsonl")]
    if path.name == INDEX_NAME:
        return []
    files = _files_at(path)
    if not files and _kind_of(str(path)) == "jsonl":
        raise ShardNotFoundError(str(path), "no file matches")
    return files if {_kind_of(file) for file in files} == {"jsonl"} else []


def _tables_below(root: Path, kind: str | None) -> list[str]:
    """Return the tables below a directory, in natural order; none if it is one of samples.

    Those in its folders are taken if they are of a kind that it has itself, or if there is nothing but tables.
    """
    names = data_names(name for name, _ in files_below(str(root)))
    kinds = {name: found for name in names if (found := _kind_of(name)) is not None and kind in (None, found)}
    own = {kinds[name] for name in kinds if "/" not in name}
    if own:
        kinds = {name: found for name, found in kinds.items() if found in own}
    elif kind is None and len(kinds) < len(names):
        return []
    say_partitions(str(root), kinds)
    return sorted(kinds, key=natural_key)


def _files_at(path: Path) -> list[str]:
    """Return the file of a path, which may not exist; or the files that match a pattern, in natural order."""
    pattern = literal_where(str(path), os.path.lexists)
    if wildcard_at(pattern) is None:
        return [str(path) if path.exists() else unescaped(pattern)]
    fixed, _, chosen = pattern[: wildcard_at(pattern)].rpartition("/")
    chosen = pattern[len(fixed) + 1 :]
    folder = Path(unescaped(fixed) or "/")
    if not folder.is_dir():
        return []
    expression = compiled(chosen, "paths")
    names = dict(files_below(str(folder), partial(may_be_above, pattern=chosen)))
    found = [name for name in data_names(names, chosen) if expression.fullmatch(name)]
    say_partitions(str(folder), found)
    return [names[name] for name in sorted(found, key=natural_key)]


def _kind_of(name: str) -> str | None:
    suffixes = name.rpartition("/")[2].lower().split(".")[1:]
    if suffixes and f".{suffixes[-1]}" in (*COMPRESSED_SUFFIXES, *REFUSED_SUFFIXES):
        suffixes = suffixes[:-1]
    last = f".{suffixes[-1]}" if suffixes else None
    return next((name for name, kind in FORMATS.items() if last in kind.suffixes and name in get_args(Kind)), None)


def _source(path: str, kind: str | None, given: Collection[str]) -> RowSource:
    makers: dict[str, Callable[[str], RowSource]] = {
        "jsonl": partial(JsonLinesSource, given=given),
        "csv": partial(SeparatedSource, separator=",", given=given),
        "tsv": partial(SeparatedSource, separator="\t", given=given),
        "parquet": partial(_table, "parquet"),
        "arrow": partial(_table, "arrow"),
        "tar": TarSource,
    }
    if kind not in makers:
        known = [suffix for name in makers for suffix in FORMATS[name].suffixes]
        raise ConfigurationError("paths", path, f"a file that ends in {', '.join(known)}, or kind=…")
    return makers[kind](path)


def _table(kind: str, path: str) -> RowSource:
    # Imported here: files of other kinds need no pyarrow.
    from fkat_data.tools.conversion_tables import ArrowSource, ParquetSource  # noqa: PLC0415 - see above

    return ParquetSource(path) if kind == "parquet" else ArrowSource(path)


def _chosen(
    sources: Sequence[RowSource], columns: Mapping[str, str], only: Sequence[str], allows_nulls: bool
) -> dict[str, str]:
    """Return the encoding of each column that is kept: the chosen one, or one that stores the values of all files."""
    found = FoundColumns(columns, only, allows_nulls)
    for source in sources:
        source.infer(found)
    for source in sources:
        source.settle(found)
    encodings = found.encodings()
    for name in (*columns, *only):
        if name not in encodings:
            raise ConfigurationError("columns", name, f"one of {', '.join(map(repr, encodings))}")
    return {name: encoding for name, encoding in encodings.items() if not only or name in only}


def _rows_of(columns: Mapping[str, str], is_whole: bool, source: RowSource) -> Iterator[dict[str, Any]]:
    """Yield a source's rows; if all columns are kept, one with another column is an error and not lost."""
    if is_whole:
        _check_names(source.names(), columns, f"in {source.name}")
    for row, sample in enumerate(source.rows(columns)):
        if is_whole and not sample.keys() <= columns.keys():
            _check_names(sample, columns, f"row {row} (from 0) of {source.name}")
        yield sample


def _check_names(names: Iterable[str], columns: Mapping[str, str], location: str) -> None:
    for name in names:
        if name not in columns:
            error = SampleError(
                name,
                "<any>",
                f"one of the columns that the first rows have ({', '.join(map(repr, columns))}): pass nulls='json' to "
                "look for columns in all rows, or name the columns to keep with only",
            )
            error.add_note(location)
            raise error


def _write(
    writer: MDSWriter,
    source: RowSource,
    columns: Mapping[str, str],
    is_whole: bool,
    progress: Callable[[int], None] | None,
) -> None:
    for row, sample in enumerate(_rows_of(columns, is_whole, source)):
        try:
            writer.write(sample)
        except SampleError as error:
            error.add_note(f"row {row} (from 0) of {source.name}")
            raise
        if progress is not None and writer.num_samples % _ROWS_BETWEEN_CALLS == 0:
            progress(writer.num_samples)


class FolderSource(RowSource):
    """The files below a folder, sorted by path, with the columns ``content`` and ``path``.

    Args:
        root: The folder.
        names: The files' paths relative to the folder.
    """

    def __init__(self, root: str, names: list[str]) -> None:
        self.name = root
        self._names = names

    @classmethod
    def parts_of(cls, root: str, num_parts: int) -> list[Self]:
        """Return the folder divided into at most ``num_parts`` parts, without hidden files and folders.

        Raises:
            ShardNotFoundError: The folder has no files.
            OSError: A folder in it cannot be read and is not hidden.
        """
        names = sorted(sample_names(name for name, _ in files_below(root)))
        if not names:
            raise ShardNotFoundError(root, "the folder has no files")
        size = -(-len(names) // num_parts)
        return [cls(root, names[begin : begin + size]) for begin in range(0, len(names), size)]

    def infer(self, found: FoundColumns) -> None:
        """Add the columns of every folder."""
        columns = {"content": EncodedColumn("bytes"), "path": EncodedColumn("str")}
        found.of_kind(EncodedColumn).update(columns)
        found.add_file(self.name, EncodedColumn, columns)

    def rows(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield a sample for each file.

        Raises:
            ConfigurationError: A file is a pipe, a socket or a device, which may have no end.
            ShardNotFoundError: A file is gone.
            OSError: A file cannot be read.
        """
        for name in self._names:
            path = Path(self.name, name)
            if path.exists() and not path.is_file():
                raise ConfigurationError(
                    "paths", str(path), "regular files alone in a folder of samples: remove this one"
                )
            sample: dict[str, Any] = {"path": name}
            if "content" in columns:
                try:
                    sample["content"] = path.read_bytes()
                except genuine(FileNotFoundError) as error:
                    raise ShardNotFoundError(str(path), "it is gone since its folder was listed") from error
                except genuine(OSError) as error:
                    raise named(error, str(path)) from None
            yield sample


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

    def infer(self, found: FoundColumns) -> None:
        """Look at the extensions of the file's members, and at all samples if they may lack some."""
        columns = found.of_kind(EncodedColumn)
        if columns and not found.allows_nulls:
            return  # an extension says the same in each file, and reading all their headers takes long
        dataset = TarDataset(self.name, decode="bytes")
        encodings = {name: _ENCODINGS.get(name.rpartition(".")[2], "bytes") for name in dataset.columns}
        if found.allows_nulls:
            for row in _rows(dataset):
                lacking = [name for name, value in row.items() if value is None and encodings[name] in _NULLABLE]
                encodings.update(dict.fromkeys(lacking, "json"))
        for name, encoding in encodings.items():
            if name not in columns:
                columns[name] = EncodedColumn(encoding)
            columns[name].add(encoding)
        found.add_file(self.name, EncodedColumn, encodings)

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
