"""Where a loader's workers come from: ours by each start method, torch's by fork and by forkserver."""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import measure
import psutil
from measure import Settings

from fkat_data.worker.settings import START_METHODS

OURS = tuple(f"ours, {method}" for method in START_METHODS)
TORCHS = ("torch, fork", "torch, forkserver")
#: What the targets compare with.
FORKED = TORCHS[0]
_SPAWNED = "ours, spawn"


def contestants(settings: Settings) -> list[str]:
    """Return those that are asked for; if none are, all but ``spawn``, which shares nothing."""
    return settings.wanted_contestants(
        name for name in (*OURS, *TORCHS) if name != _SPAWNED or name in settings.contestants
    )


def loader_options(contestant: str) -> tuple[Any, dict[str, Any]]:
    """Return the module whose loaders a contestant has, and the argument that says where workers come from."""
    library, method = contestant.split(", ")
    if library == "ours":
        return importlib.import_module("fkat_data"), {"start_method": method}
    return importlib.import_module("torch.utils.data"), {"multiprocessing_context": method}


def map_style(contestant: str, dataset: Any, num_workers: int, **options: Any) -> Any:
    """Return a ``DataLoader`` of the contestant's."""
    module, own = loader_options(contestant)
    return module.DataLoader(dataset, num_workers=num_workers, **own, **options)


def close(loader: Any) -> None:
    """End the workers: torch's end with their iterator."""
    if hasattr(loader, "close"):
        loader.close()


def variants_of(
    names: Sequence[str], loads: Sequence[int], **arguments: Any
) -> Iterator[tuple[int, dict[str, dict[str, Any]]]]:
    """Return, for each number of busy processes, the arguments of each contestant's trial."""
    for busy in loads:
        yield busy, {name: {"contestant": name, "busy": busy, **arguments} for name in names}


def memory_bytes() -> int:
    """Return the proportional set size of this process and all its descendants, busy neighbours left out."""
    found = 0
    for process in measure.all_processes():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            found += process.memory_full_info().pss
    return found
