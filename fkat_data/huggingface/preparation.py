"""``accelerator.prepare`` for loaders of this library."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast
from weakref import ref

import torch
from torch.utils.data import DataLoader

from fkat_data.accelerated import data_ranks
from fkat_data.distributed import gather
from fkat_data.huggingface.loader_face import LoaderFace, is_own_loader

_logger = logging.getLogger(__name__)


def prepare(accelerator: Any, *objects: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
    """Prepare what ``accelerator.prepare`` does, and loaders of this library besides; return all in the same order.

    A prepared loader delivers each rank's own part once, and of a ``fkat_data.DataLoader`` its share of the batches, on
    the accelerator's device. ``accelerator.save_state()`` and ``load_state()`` include its place, to the microbatch.
    ``accelerator.accumulate`` knows its last microbatch, and ``accelerator.skip_first_batches`` loads nothing that was
    delivered before. It takes one microbatch ahead.

    Every rank calls this. A loader that the accelerator has already is returned as before.

    Args:
        accelerator: An ``accelerate.Accelerator``.
        objects: Models, optimizers, schedulers, torch's DataLoaders, and loaders of this library.
        device_placement: Whether to move each object; None: as the accelerator does.

    Returns:
        The prepared objects; a single one by itself.

    Raises:
        ConfigurationError: This machine cannot deliver to the accelerator's device; or a ``fkat_data.DataLoader`` cannot
            be dealt out to the ranks.
        Exception: Whatever ``accelerator.prepare`` raises.
    """
    placements = [None] * len(objects) if device_placement is None else list(device_placement)
    own = {index: item for index, item in enumerate(objects) if is_own_loader(item)}
    faces: dict[int, Any] = {}
    for index, loader in own.items():
        faces[index] = _registered_face(loader, accelerator, placements[index])
    others = [index for index in range(len(objects)) if index not in own]
    if others:
        # As a whole: an optimizer follows its model, a scheduler its optimizer.
        given = None if device_placement is None else [placements[index] for index in others]
        prepared = accelerator.prepare(*(objects[index] for index in others), device_placement=given)
        faces |= zip(others, prepared if len(others) > 1 else (prepared,), strict=True)
    results = tuple(faces[index] for index in range(len(objects)))
    return results[0] if len(results) == 1 else results


class _RegisteredPlace:
    """What an ``Accelerator`` saves of a loader, for as long as the program has the loader, or an iterator of it.

    The accelerator itself never drops what is registered, not even in ``free_memory``: it must not keep workers alive.
    """

    def __init__(self, face: LoaderFace) -> None:
        self._face = ref(face)
        self._course = ref(face.course)

    @property
    def face(self) -> LoaderFace | None:
        return self._face()

    @property
    def is_gone(self) -> bool:
        return self._course() is None

    def state_dict(self) -> dict[str, Any]:
        course = self._course()
        return {} if course is None else course.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        course = self._course()
        if course is not None:
            course.load_state_dict(state_dict)


def _registered_face(loader: Any, accelerator: Any, is_placed: bool | None) -> LoaderFace:
    """Return a loader's face, the one that the accelerator saves if it has one; drop those that are gone."""
    registered: list[Any] = accelerator._custom_objects  # noqa: SLF001 - accelerate has no other way to drop one
    registered[:] = [each for each in registered if not (isinstance(each, _RegisteredPlace) and each.is_gone)]
    faces = [each.face for each in registered if isinstance(each, _RegisteredPlace)]
    found = next((face for face in faces if face is not None and loader in (face, face.loader)), None)
    if found is not None:
        return found
    face = loader if isinstance(loader, LoaderFace) else face_for(loader, accelerator, is_placed)
    accelerator.register_for_checkpointing(_RegisteredPlace(face))
    return face


def face_for(loader: Any, accelerator: Any, is_placed: bool | None = None) -> LoaderFace:
    """Return a loader's face for an accelerator. A collective: every rank must call it.

    Args:
        loader: A loader of this library.
        accelerator: Says which device, and how many ranks there are.
        is_placed: Whether microbatches go to its device; None: as the accelerator says.
    """
    device: torch.device = accelerator.device
    if is_placed is None:
        is_placed = accelerator.device_placement
    if accelerator.num_processes > 1:
        _give_part(loader, accelerator)
    if isinstance(loader, DataLoader) and hasattr(cast("Any", loader), "deal_out"):
        # The face takes over from accelerator.prepare().
        loader._is_accelerate_prepared = False  # noqa: SLF001 - an attribute of accelerate's
    # On the CPU, microbatches stay the views that they are.
    placed = device if is_placed and device.type != "cpu" else None
    return LoaderFace(loader, placed, non_blocking=accelerator.non_blocking)


def _give_part(loader: Any, accelerator: Any) -> None:
    """Deal a ``fkat_data.DataLoader`` out to the ranks; warn if another loader delivers the same on all of them.

    Raises:
        ConfigurationError: The loader cannot be dealt out.
    """
    if hasattr(loader, "deal_out"):
        num_ranks, rank = data_ranks(accelerator)
        loader.deal_out(num_ranks, rank, even_batches=accelerator.even_batches, split_batches=accelerator.split_batches)
        return
    plan: Any = loader.local_state_dict().get("fingerprint")
    own = (plan["dp_rank"], plan["shards"]) if plan and {"dp_rank", "shards"} <= set(plan) else None
    plans = gather(own)
    if own is not None and set(plans) == {own}:
        _logger.warning(
            "each of the %d ranks will deliver the same samples: nothing deals out the shards. Wrap the sampler: "
            "DistributedDataParallelShardSampler(sampler, accelerator.num_processes, accelerator.process_index). "
            "Ignore this if all ranks share their data on purpose, as tensor-parallel ranks do",
            len(plans),
        )
