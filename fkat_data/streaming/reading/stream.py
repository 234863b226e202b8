"""A stream: one of the datasets that a ``StreamingDataset`` mixes."""

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import Any, Self, cast

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.errors.wording import Described, redacted_location
from fkat_data.files.stored import is_same_path
from fkat_data.files.tar import DecoderName, checked_decode
from fkat_data.files.token_shards import TokenWindowing, checked_windowing
from fkat_data.storage.location import path_of, resolved
from fkat_data.storage.patterns import literal_where
from fkat_data.streaming.order.weights import StreamWeight
from fkat_data.streaming.reading.file_pattern import FilePattern, split_location
from fkat_data.streaming.store.store import open_store

_DEFAULTS = {
    "split": None,
    "download_retry": 2,
    "download_timeout": 60.0,
    "validate_hash": None,
    "keep_zip": False,
    "storage_options": None,
    "columns": None,
    "decode": None,
    "tokens": None,
}
_LOCAL = "a directory of this machine, as a path or a file:// URL"


class Stream(Described):
    """The location of a dataset's shards, and its weight in an epoch.

    The ``StreamingDataset`` supplies the settings that are not given here. Several datasets may use one stream. The
    dataset's own ``streams`` have ``proportion``, ``repeat`` and ``choose``, whichever was given.

    Args:
        remote: The directory of the shards: a path, or a URL of any store that fsspec opens. A directory without an
            index may have Parquet files or tar files, at any depth. A location that ends with ``.parquet`` or
            ``.tar`` names files: one file, or a pattern such as ``s3://bucket/data/*.parquet``.
        local: The directory of this node that caches the shards; without ``remote``, the directory of the shards, or
            a pattern of files. None: shards of a store are cached below the system's temporary directory; a directory
            of this machine is read in place.
        split: A directory within both.
        proportion: The stream's share of an epoch, relative to those of the other streams.
        repeat: How often an epoch shows the stream; 0.5 shows half of it.
        choose: The number of samples that an epoch takes from the stream.
        download_retry: How often a failed download is retried; a copy from a directory of this machine is not.
        download_timeout: Seconds that an attempt may take for each 64 MiB; a copy from a directory of this machine
            has no limit.
        validate_hash: The hash of the index, such as ``"sha256"``, to compare files with; None: compare their sizes
            alone.
        keep_zip: Whether compressed files stay after they are decompressed.
        storage_options: The options of fsspec's file system for ``remote``, such as ``key``, ``secret`` and
            ``endpoint_url``. Its library looks up the others in its usual locations.
        columns: The columns to read; None: all. Of Parquet files, no other column is fetched or decoded. Of tar files:
            extensions, ``__key__`` and ``__url__``; None: all but ``__url__``.
        decode: How members of tar files are decoded: a decoder for all, such as ``"bytes"``, or decoders for
            some extensions, such as ``{"jpg": "bytes"}``; None: by extension.
        tokens: How files of tokens become samples: a mapping with ``window_size``, the tokens of a sample; ``stride``,
            those from one to the next (as many without it); ``dtype`` of files that do not say it; ``end_of_document``,
            the token that ends a document, for samples with boundaries; and ``vocab_size``, what tokens are below. A
            sample has ``tokens``, int64, shape (window_size,), and the fields of ``fkat_data.datasets.TokenWindows``.

    Raises:
        ConfigurationError: An argument is invalid, more than one of ``proportion``, ``repeat`` and ``choose`` is given,
            or no installed package opens ``remote``.
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, DecoderName] | DecoderName | None = None,
        tokens: Mapping[str, Any] | None = None,
    ) -> None:
        weights = {"proportion": proportion, "repeat": repeat, "choose": choose}
        given = {kind: value for kind, value in weights.items() if value is not None}
        if len(given) > 1:
            raise ConfigurationError("Stream", given, "at most one of proportion, repeat and choose")
        for kind, value in given.items():
            _check_weight(kind, value)
        # Absolute from now on, whatever directory is current later.
        self.remote: str | None = None if remote is None else resolved("remote", remote)
        self.local: str | None = None if local is None else resolved("local", local, _LOCAL)
        self.proportion = proportion
        self.repeat = repeat
        self.choose = choose
        self._set(
            {
                "split": split,
                "download_retry": download_retry,
                "download_timeout": download_timeout,
                "validate_hash": validate_hash,
                "keep_zip": keep_zip,
                "storage_options": storage_options,
                "columns": columns,
                "decode": decode,
                "tokens": tokens,
            }
        )
        if self.local is not None and path_of(self.local) is None:
            raise ConfigurationError("local", local, _LOCAL)

    _given_weight: StreamWeight | None = None
    split: str
    download_retry: int | None
    download_timeout: float | None
    validate_hash: str | None
    keep_zip: bool | None
    storage_options: Mapping[str, Any] | None
    columns: tuple[str, ...] | None
    decode: dict[str, str] | str | None
    tokens: TokenWindowing | None

    def _set(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            check = _CHECKS.get(name)
            setattr(self, name, value if value is None or check is None else check(name, value))
        self.split = self.split or ""
        # A remote that cannot be opened is an error here, before training starts.
        if self.remote is not None:
            open_store(self.remote, storage_options=self.storage_options, num_retries=0, timeout_s=1)

    @property
    def weight(self) -> StreamWeight:
        """The weight of the stream as it was given."""
        if self._given_weight is not None:
            return self._given_weight
        for kind in ("proportion", "repeat", "choose"):
            value = getattr(self, kind)
            if value is not None:
                return StreamWeight(kind, value)
        return StreamWeight()

    @property
    def remote_location(self) -> str:
        """Path or URL of the directory of the shards, including the split; empty if there is none."""
        if self.remote_directory is not None:
            return str(self.remote_directory)
        location = _split(self.remote)[0] or ""
        if not location or not self.split:
            return location
        return f"{location.rstrip('/')}/{self.split}"

    @property
    def file_pattern(self) -> FilePattern | None:
        """The pattern of files that the stream consists of; None if its location is a directory."""
        return _split(self.remote or self.local)[1]

    @property
    def remote_directory(self) -> Path | None:
        """The remote as a directory of this machine, including the split; None if it is none."""
        return _below(self.remote, self.split)

    @property
    def local_directory(self) -> Path | None:
        """The local directory, including the split; None if none is given."""
        return _below(self.local, self.split)

    @property
    def cache_directory(self) -> Path | None:
        """The directory that caches the shards, including the split; None if they are read in place."""
        if not self.remote:
            return None
        local, remote = self.local_directory, self.remote_directory
        if remote is not None:
            return None if local is None or is_same_path(local, remote) else local
        pattern = self.file_pattern
        return local or own_directory(f"{self.remote_location}/{pattern.text}" if pattern else self.remote_location)

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "remote", redacted_location(self.remote)
        yield "local", redacted_location(self.local)
        yield "split", self.split
        yield "proportion", self.proportion
        yield "repeat", self.repeat
        yield "choose", self.choose

    def filled(self, **defaults: Any) -> Self:
        """Return a copy of this stream, of its own class and with all its attributes, with missing settings filled in.

        Args:
            **defaults: ``split``, ``download_retry``, ``download_timeout``, ``validate_hash``, ``keep_zip``,
                ``storage_options``, ``columns``, ``decode`` and ``tokens``.

        Raises:
            ConfigurationError: The stream has neither ``remote`` nor ``local``, or a default is invalid.
        """
        if not self.remote and not self.local:
            raise ConfigurationError(
                "streams", "<a stream without remote and local>", "remote or local for every stream"
            )
        settings = {name: getattr(self, name) for name in _DEFAULTS}
        filled = copy(self)
        filled._set(  # noqa: SLF001 - of this object
            {
                name: defaults.get(name, default) if settings[name] in (None, "") else settings[name]
                for name, default in _DEFAULTS.items()
            }
        )
        return filled

    def weighted(self, proportion: float, repeat: float, choose: int) -> Self:
        """Return a copy that has its share of an epoch in every form; its ``weight`` stays what was given."""
        weighted = copy(self)
        weighted._given_weight = self.weight  # noqa: SLF001 - of this object
        weighted.proportion, weighted.repeat, weighted.choose = proportion, repeat, choose
        return weighted


def given_streams(
    streams: Sequence[Stream] | None,
    stream_name: str,
    stream_config: Mapping[str, Any] | None,
    **options: Any,
) -> Sequence[Stream]:
    """Return the streams of a dataset, without its defaults.

    Args:
        streams: The streams; None or empty: the only one is made of the other arguments.
        stream_name: The kind of the only stream.
        stream_config: Arguments of the only stream.
        **options: What the dataset has for the same arguments. Precedes ``stream_config``, unless it is the default.

    Raises:
        ConfigurationError: Both ``streams`` and the only stream are given, or neither, or an argument is invalid.
    """
    arguments.choice("stream_name", stream_name, ("stream",))
    if stream_config is not None and not isinstance(cast("object", stream_config), Mapping):
        raise ConfigurationError("stream_config", stream_config, "a dictionary of arguments of Stream")
    own = {name: value for name, value in options.items() if value is not None and value != _DEFAULTS.get(name)}
    ways = ["streams"] if streams else []
    ways += [name for name in ("remote", "local") if name in own]
    ways += [] if stream_config is None else ["stream_config"]
    if not ways or (streams and len(ways) > 1):
        raise ConfigurationError("streams", ways, "either streams, or one stream by remote, local and stream_config")
    if not streams:
        return [Stream(**{**(stream_config or {}), **own})]
    for stream in streams:
        if not isinstance(stream, Stream):
            raise ConfigurationError("streams", stream, "a list of Stream")
    return streams


def _check_weight(kind: str, value: object) -> None:
    if kind == "choose":
        arguments.integer(kind, value, minimum=0)
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigurationError(kind, value, "a number of at least 0")


def _below(location: str | None, split: str | None) -> Path | None:
    found = _split(location)[0]
    directory = None if found is None else path_of(found)
    return directory / split if directory is not None and split else directory


def _split(location: object) -> tuple[str | None, FilePattern | None]:
    """Return the directory of a location, and the pattern if it names files; what exists is no pattern."""
    if location is None:
        return None, None
    text = str(location)
    path = path_of(text)
    if path is not None:
        if path.is_dir() or text.endswith("/"):
            return text, None
        text = literal_where(str(path), os.path.lexists)
    found = split_location(text)
    return (str(location), None) if found is None else found


def _names(argument: str, value: object) -> tuple[str, ...]:
    is_listed = isinstance(value, Sequence) and not isinstance(value, str)
    names: tuple[object, ...] = tuple(cast("Sequence[object]", value)) if is_listed else ()
    texts = tuple(name for name in names if isinstance(name, str))
    if not names or len(texts) < len(names) or len(set(texts)) < len(texts):
        raise ConfigurationError(argument, cast("object", value), "a list of distinct names, not empty")
    return texts


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "download_retry": partial(arguments.integer, minimum=0),
    "download_timeout": arguments.seconds,
    "validate_hash": lambda _, value: value or None,
    "keep_zip": arguments.boolean,
    "columns": _names,
    "decode": lambda _, value: checked_decode(value),
    "tokens": lambda _, value: checked_windowing(value),
}


def own_directory(location: str) -> Path:
    """Return the default directory of this user's files of a location, below the temporary directory."""
    # By user: a cache refuses the directory of another user.
    name = blake2s(os.fsencode(location), digest_size=16).hexdigest()
    return Path(tempfile.gettempdir()) / f"fkat_data-{os.geteuid()}" / name
