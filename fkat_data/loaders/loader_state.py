"""The state of a ``DataLoader``: one record, and the mapping that a program saves.

The mapping has ``version``, ``seed``, ``epoch`` and ``step``, the plan's own field (``sampler``, ``strands`` or
``stream``), and a field for each of the others that has something to say; what is no field of the record is compared with
the loader that loads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias, cast

from fkat_data.errors.arguments import STATE_VERSION
from fkat_data.loaders.rank_share import Sharing
from fkat_data.loaders.reshards import reshards_field, reshards_in
from fkat_data.plan.position import Reshard

PlanKind: TypeAlias = Literal["sampler", "strands", "stream"]
"""The field of a saved state that is the plan's: of indices, of an iterable dataset, or of a stream."""

PLAN_KINDS: tuple[PlanKind, ...] = ("sampler", "strands", "stream")
_OF_STRANDS = (
    *("num_strands", "strands", "strand_numbers", "strand_ranks", "all_strands", "strands_per_rank"),
    "taken_over",
)
_OF_PLANS = (*PLAN_KINDS, *_OF_STRANDS)
_GATHERED = "gathered"
# Fields that are saved as they are, where there is something to say.
_PLAIN = (
    "rank",
    "dealt_ranks",
    "dealt_rank",
    "dataset_ranks",
    "dataset",
    "dataset_order",
    "files",
    "saved_by",
    "added",
)
_OTHERS = {"version", "seed", "epoch", "step", "resplits", _GATHERED, *_PLAIN}


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """The position of a ``DataLoader``, and what must be so where it goes on.

    Attributes:
        seed: The loader's.
        epoch: The epoch of the next microbatch.
        step: Microbatches of it that were delivered.
        plan_state: What the plan says of the position, by the fields that a saved state has for it.
        fingerprint: What must be the same in the loader that goes on, such as ``batch_size``.
        reshards: Where the number of ranks has changed, in an epoch that is not over.
        sharing: The ranks that the batches are dealt out to; None: to one.
        is_gathered: Whether it is of all ranks, which were in step.
        rank: The rank that alone can go on with it; None: any.
        dealt_ranks: Ranks that a dataset or a batch sampler deals itself out to; None: it does not.
        dealt_rank: Which of them it is.
        dataset_ranks: Ranks that a packed dataset deals itself out to; None: it is none.
        dataset: The state of a dataset that drew the seed of its order.
        dataset_order: What the order of a Hugging Face dataset depends on.
        files: What the dataset's files are, in numbers.
        saved_by: The rank whose sampler or dataset no other process can ask, and of how many.
        added: What a framework has added to the saved state.
    """

    seed: int
    epoch: int
    step: int
    plan_state: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    reshards: tuple[Reshard, ...] = ()
    sharing: Sharing | None = None
    is_gathered: bool = False
    rank: int | None = None
    dealt_ranks: int | None = None
    dealt_rank: int | None = None
    dataset_ranks: int | None = None
    dataset: Mapping[str, Any] | None = None
    dataset_order: Mapping[str, Any] | None = None
    files: Sequence[int] | None = None
    saved_by: Sequence[int | None] | None = None
    added: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Self:
        """Return the record of a saved state whose counts were checked.

        Raises:
            StateMismatchError: Its reshards are damaged.
        """
        sharing = {name: saved[name] for name in Sharing._fields if name in saved}
        others = _OTHERS.union(_OF_PLANS, Sharing._fields)
        return cls(
            seed=saved["seed"],
            epoch=saved["epoch"],
            step=saved["step"],
            plan_state={name: saved[name] for name in _OF_PLANS if name in saved},
            fingerprint={name: value for name, value in saved.items() if name not in others},
            reshards=reshards_in(saved),
            sharing=Sharing(**sharing) if sharing else None,
            is_gathered=bool(saved.get(_GATHERED)),
            **{name: saved[name] for name in _PLAIN if name in saved},
        )

    def plain(self) -> dict[str, Any]:
        """Return the state as a program saves it."""
        saved = {"version": STATE_VERSION, "seed": self.seed, **self.fingerprint}
        saved |= {} if self.sharing is None else self.sharing._asdict()
        saved |= reshards_field(self.reshards, self.epoch)
        saved |= {name: value for name in _PLAIN if (value := getattr(self, name)) not in (None, {})}
        saved |= {_GATHERED: True} if self.is_gathered else {}
        return {**saved, "epoch": self.epoch, "step": self.step, **self.plan_state}

    def with_sampler(self, sampler: Mapping[str, Any]) -> Self:
        """Return this state with another one of the plan's, which is of indices."""
        return replace(self, plan_state={"sampler": dict(sampler)})

    @property
    def sampler(self) -> Mapping[str, Any]:
        """What a plan of indices says of the position; empty: the plan is another one."""
        return cast("Mapping[str, Any]", self.plan_state.get("sampler", {}))

    @property
    def strands(self) -> Sequence[Mapping[str, Any]]:
        """What a plan of strands says of each of them; empty: the plan is another one."""
        return cast("Sequence[Mapping[str, Any]]", self.plan_state.get("strands", ()))

    @property
    def num_ranks(self) -> int:
        """The ranks that the loader deals its batches out to."""
        return 1 if self.sharing is None else self.sharing.num_ranks

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch; None: they are single samples, or batches of any size."""
        return cast("int | None", self.fingerprint.get("batch_size"))

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is smaller is left out."""
        return bool(self.fingerprint.get("drop_last"))

    @property
    def is_of_windows(self) -> bool:
        """Whether the plan's tasks are windows."""
        return "window" in self.sampler
