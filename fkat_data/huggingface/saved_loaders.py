"""The places of a ``Trainer``'s loaders, in a file of its checkpoint."""

import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine

_FILE = "fkat_data_loaders.pt"
_TRAINER_STATE = "trainer_state.json"


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the newest whole checkpoint that a ``Trainer`` with ``ExactResumeMixin`` has written; None: there is none.

    A checkpoint during which the job was killed is passed over.

    Args:
        output_dir: The ``output_dir`` of the ``TrainingArguments``.
    """
    folder = Path(output_dir)
    found = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    }
    return next((str(found[step]) for step in sorted(found, reverse=True) if _is_whole(found[step])), None)


def write_loaders(checkpoint: str | os.PathLike[str], states: Mapping[str, Any], num_ranks: int | None) -> None:
    """Write the states of loaders, by their roles; the file is there as a whole or not at all.

    Args:
        checkpoint: The checkpoint's folder.
        states: The state of each loader.
        num_ranks: Ranks whose random states the folder will have, if it has any; None: those of some ranks.
    """
    path = Path(checkpoint) / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    torch.save({"version": 1, "num_ranks": num_ranks, "loaders": dict(states)}, beside)
    beside.replace(path)


def read_loaders(checkpoint: str | os.PathLike[str], *, needed: str | None) -> dict[str, Any]:
    """Return the states of loaders, by their roles; none if the checkpoint has none, and none is needed.

    Args:
        checkpoint: The checkpoint's folder.
        needed: The role of a loader whose state there must be; None: there need not be any.

    Raises:
        ConfigurationError: The checkpoint does not have the state that is needed.
    """
    path = Path(checkpoint) / _FILE
    states: dict[str, Any] = torch.load(path, weights_only=True)["loaders"] if path.exists() else {}
    if needed is not None and needed not in states:
        raise ConfigurationError(
            "resume_from_checkpoint",
            str(checkpoint),
            f"a checkpoint with the {needed} loader's place in {_FILE}, which a Trainer with ExactResumeMixin writes: "
            "this one does not say where the loader goes on. fkat_data.huggingface.last_checkpoint(output_dir) finds the newest one that does",
        )
    return states


def read_global_step(checkpoint: str | os.PathLike[str]) -> int:
    """Return how many optimizer steps a checkpoint's run had made."""
    return json.loads((Path(checkpoint) / _TRAINER_STATE).read_text())["global_step"]


def _is_whole(checkpoint: Path) -> bool:
    """Return whether all ranks have written all files: the states come first, then random states, then the steps."""
    try:
        read_global_step(checkpoint)
        num_ranks = torch.load(checkpoint / _FILE, weights_only=True)["num_ranks"]
    except genuine(OSError, ValueError, KeyError):
        return False
    # A rank other than the first writes its random state while the first one goes on.
    random_states = list(checkpoint.glob("rng_state*.pth"))
    is_complete = num_ranks is None or len(random_states) in (0, num_ranks)
    return is_complete and all(map(zipfile.is_zipfile, random_states))
