"""A stream: one of the datasets that a ``StreamingDataset`` mixes."""

import math
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order.weights import StreamWeight

__all__ = ["Stream"]

_DEFAULTS = {
    "split": None,
    "download_retry": 2,
    "download_timeout": 60.0,
    "validate_hash": None,
    "keep_zip": False,
}


class Stream:
    """Where a dataset's shards are, and how much an epoch takes of them.

    What is not given here is taken from the ``StreamingDataset``. A stream may be used in several datasets.

    Args:
        remote: The directory that the shards come from, or a ``file://`` URL of one.
        local: The directory that they are copied to and read in; None: they are read where they are.
        split: A directory within both.
        proportion: The stream's part of an epoch, in relation to those of the other streams.
        repeat: How often an epoch shows the stream; 0.5 is half of it.
        choose: How many samples an epoch takes of it.
        download_retry: How often a failed download is tried again; a copy from a directory of this machine is not.
        download_timeout: Seconds that a download may take; a copy from a directory of this machine takes what it takes.
        validate_hash: A hash of the index, such as ``"sha256"``, that files are compared with; None: none, but their
            sizes always.
        keep_zip: Whether compressed files stay once they are decompressed.

    Raises:
        ConfigurationError: An argument is none of these, or more than one of ``proportion``, ``repeat`` and
            ``choose`` is given.
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
    ) -> None:
        weights = {"proportion": proportion, "repeat": repeat, "choose": choose}
        given = {kind: value for kind, value in weights.items() if value is not None}
        if len(given) > 1:
            raise ConfigurationError("Stream", given, "at most one of proportion, repeat and choose")
        for kind, value in given.items():
            _check_weight(kind, value)
        if download_retry is not None:
            arguments.integer("download_retry", download_retry, minimum=0)
        if download_timeout is not None:
            arguments.seconds("download_timeout", download_timeout)
        if keep_zip is not None:
            arguments.boolean("keep_zip", keep_zip)
        self.remote = remote
        self.local = local
        self.split = split
        self.proportion = proportion
        self.repeat = repeat
        self.choose = choose
        self.download_retry = download_retry
        self.download_timeout = download_timeout
        self.validate_hash = validate_hash or None
        self.keep_zip = keep_zip
        # Now: what cannot be read is an error here and not when training starts.
        _directory("remote", remote)
        _directory("local", local)

    @property
    def weight(self) -> StreamWeight:
        """What was said of the stream's weight."""
        for kind in ("proportion", "repeat", "choose"):
            value = getattr(self, kind)
            if value is not None:
                return StreamWeight(kind, value)
        return StreamWeight()

    @property
    def remote_directory(self) -> Path | None:
        """The directory that the shards come from, the split included."""
        return _below(_directory("remote", self.remote), self.split)

    @property
    def local_directory(self) -> Path | None:
        """The directory that the shards are read in, the split included."""
        return _below(_directory("local", self.local), self.split)

    def filled(self, **defaults: Any) -> "Stream":
        """Return this stream with what it leaves open filled in.

        Args:
            **defaults: ``split``, ``download_retry``, ``download_timeout``, ``validate_hash`` and ``keep_zip``.

        Raises:
            ConfigurationError: It has neither ``remote`` nor ``local``, or a default does not work.
        """
        if not self.remote and not self.local:
            raise ConfigurationError("streams", "<a stream without remote and local>", "a directory for every stream")
        settings = {name: getattr(self, name) for name in _DEFAULTS}
        filled = {
            name: settings[name] if settings[name] is not None else defaults.get(name, default)
            for name, default in _DEFAULTS.items()
        }
        return Stream(
            remote=self.remote,
            local=self.local,
            proportion=self.proportion,
            repeat=self.repeat,
            choose=self.choose,
            **filled,
        )


def _check_weight(kind: str, value: object) -> None:
    if kind == "choose":
        arguments.integer(kind, value, minimum=0)
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigurationError(kind, value, "a number of at least 0")


def _directory(argument: str, location: object) -> Path | None:
    if location is None:
        return None
    if not isinstance(location, (str, Path)) or not str(location):
        raise ConfigurationError(argument, location, "the path of a directory")
    text = str(location)
    if "://" not in text:
        return Path(text)
    url = urlsplit(text)
    if url.scheme != "file" or url.netloc not in ("", "localhost"):
        raise ConfigurationError(argument, location, "a directory of this machine, as a path or a file:// URL")
    return Path(unquote(url.path))


def _below(directory: Path | None, split: str | None) -> Path | None:
    return directory if directory is None or not split else directory / split
