"""A file with the present statistics, for node_exporter's textfile collector."""

import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self, cast

from fkat_data import arguments
from fkat_data.distributed import rank_and_world_size
from fkat_data.dropped import WeakTable, after_end
from fkat_data.errors import ConfigurationError
from fkat_data.export.metrics import StatisticsSource, WatchedLoaders, present, watched
from fkat_data.export.prometheus_text import prometheus_text
from fkat_data.interruption import genuine, suppress
from fkat_data.location import machine_path

logger: logging.Logger = logging.getLogger(__name__)

# Those that this process writes; a fork of it writes none of them.
_open_files: "WeakTable[tuple[int, Path], PrometheusFile]" = WeakTable()
_opening = threading.Lock()

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class PrometheusFile:
    """Writes loaders' statistics to a file every ``interval_s``, from a thread; also a context manager.

    A reader always sees a whole file: each is written beside it and renamed. Every line has the labels ``loader``
    and ``rank``. A file that cannot be written, when its disk is full, is one warning in the log; training goes on. So
    is a file that another process writes as well.

    Args:
        path: The file, whose name ends with ``.prom``. Each of several ranks writes its own: ``run-rank3.prom`` for
            ``run.prom``. Only one ``PrometheusFile`` of a process may write it at a time.
        loaders: A loader, or several by their names; none of them is kept alive.
        interval_s: Seconds between two files.
        labels: More labels of every line, for example the name of the run.

    Raises:
        ConfigurationError: The file cannot be written, another ``PrometheusFile`` of this process writes it, or an
            argument cannot work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        loaders: StatisticsSource | Mapping[str, StatisticsSource],
        interval_s: float = 15.0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        expected = "a file of this machine whose name ends with .prom: node_exporter reads no other"
        file = machine_path("path", path, expected)
        if file.suffix != ".prom":
            raise ConfigurationError("path", path, expected)
        rank, world_size = rank_and_world_size()
        if world_size > 1:
            file = file.with_name(f"{file.stem}-rank{rank}{file.suffix}")
        self.path: Path = file
        """The file of this rank."""
        text = _Text(watched(loaders), {"rank": str(rank), **_checked(labels or {})})
        interval_s = arguments.seconds("interval_s", interval_s)
        self._key = (os.getpid(), file.parent.resolve() / file.name)
        with _opening:
            if _open_files.get(self._key) is not None:
                free = "a file that no other PrometheusFile of this process writes: close that one, or give one of them"
                raise ConfigurationError("path", path, f"{free} all loaders, as a dict with their names")
            _open_files[self._key] = self
        try:
            text.write(file)
        except BaseException as error:
            _open_files.pop(self._key)
            if isinstance(error, OSError):
                raise ConfigurationError("path", path, f"a file that can be written ({error})") from error
            raise
        self._text = text
        self._is_over = threading.Event()
        arguments_of_thread = (file, text, interval_s, self._is_over)
        self._thread = threading.Thread(
            target=_write_often, args=arguments_of_thread, name="fkat_data export", daemon=True
        )
        self._thread.start()
        after_end(self, self._is_over.set)

    def close(self) -> None:
        """Write the file a last time; it stays. Any number of calls."""
        if self._is_over.is_set() or os.getpid() != self._key[0]:  # a fork has no such thread
            return
        self._is_over.set()
        self._thread.join()
        _write(self.path, self._text)
        _open_files.pop(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Text:
    def __init__(self, loaders: WatchedLoaders, labels: Mapping[str, str]) -> None:
        self._loaders = loaders
        self._labels = labels
        self._written: tuple[int, int] | None = None
        self._has_company = False
        self.has_failed = False

    def write(self, path: Path) -> None:
        text = prometheus_text(({"loader": name, **self._labels}, now) for name, now in present(self._loaders))
        found = _identity(path)
        if None not in (self._written, found) and found != self._written and not self._has_company:
            self._has_company = True
            logger.warning(
                "another process writes %s, too, so that it has the numbers of either: give each its own", path
            )
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
        self._written = _identity(path)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what differs between two files that had the same name; None if there is none."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _write_often(path: Path, text: _Text, interval_s: float, is_over: threading.Event) -> None:
    while not is_over.wait(interval_s):
        _write(path, text)


def _write(path: Path, text: _Text) -> None:
    try:
        text.write(path)
    except genuine(Exception) as error:  # numbers are no reason to end a training run
        if not text.has_failed:
            logger.warning("the statistics cannot be written to %s: %s: %s", path, type(error).__name__, error)
        text.has_failed = True
    else:
        text.has_failed = False


def _checked(labels: Mapping[str, str]) -> dict[str, str]:
    for name in labels:
        if not isinstance(cast("object", name), str) or not _LABEL.fullmatch(name) or name in ("loader", "rank", "le"):
            raise ConfigurationError("labels", name, "names of letters, digits and _, other than loader, rank and le")
    return {name: str(value) for name, value in labels.items()}
