"""The state of a ``DataLoader``: one record, and the mapping that a program saves.

The mapping has ``version``, ``seed``, ``epoch`` and ``step``, the plan's own field (``sampler``, ``strands`` or
``stream``), and a field for each of the others that has something to say; what is no field of the record is compared with
the loader that loads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias, cast

from fkat_data.errors import StateMismatchError
from fkat_data.errors.acceptance import Acceptance, AcceptedField, accepted_field, accepted_in
from fkat_data.errors.arguments import STATE_VERSION, check_version, saved_integer
from fkat_data.errors.wording import counted
from fkat_data.loaders.checked_order import checks_in
from fkat_data.loaders.rank_share import Sharing
from fkat_data.loaders.reshards import reshards_field, reshards_in
from fkat_data.plan.commits import OUTSTANDING, outstanding_field
from fkat_data.plan.position import Reshard

PlanKind: TypeAlias = Literal["sampler", "strands", "stream"]
"""The field of a saved state that is the plan's: of indices, of an iterable dataset, or of a stream."""

PLAN_KINDS: tuple[PlanKind, ...] = ("sampler", "strands", "stream")
_KINDS: dict[PlanKind, str] = {
    "sampler": "<of a dataset with indices>",
    "strands": "<of an iterable dataset>",
    "stream": "<of a streaming dataset>",
}
_NOT_A_STATE = "this is not a state of a fkat_data.DataLoader"
_OF_STRANDS = (
    *("num_strands", "strands", "strand_numbers", "strand_ranks", "all_strands", "strands_per_rank"),
    "taken_over",
)
_OF_PLANS = (*PLAN_KINDS, *_OF_STRANDS)
# The field of a state that is of all ranks, which were in step.
_GATHERED = "gathered"
# What says, in saved states, that ranks are at one position, and in one order.
_POSITION_FIELDS = ("seed", "epoch", "step", "resplits", "num_ranks", "even_batches", "split_batches")
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
    OUTSTANDING,
)
_OTHERS = {"version", "seed", "epoch", "step", "resplits", "accepted", _GATHERED, *_PLAIN}


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
        accepted: What differed where a state was loaded, and was accepted.
        outstanding: What was delivered and not committed, where the caller commits: see ``fkat_data.plan.commits``.
        begun_lengths: Samples in each epoch that was begun before files were appended. Not saved: an epoch's state says its own.
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
    accepted: tuple[AcceptedField, ...] = ()
    outstanding: Sequence[Any] | None = None
    begun_lengths: Mapping[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def read(cls, state_dict: object) -> Self:
        """Return the record of a saved state.

        Raises:
            StateMismatchError: It is no state of a ``DataLoader``, or is damaged, or of another version.
        """
        if not isinstance(state_dict, Mapping):
            raise StateMismatchError("state_dict", type(state_dict).__name__, "<a mapping>", _NOT_A_STATE)
        saved = cast("Mapping[str, Any]", state_dict)
        check_version(saved, STATE_VERSION)
        for name in ("seed", "epoch", "step"):
            _check_count(saved, name)
        kind = _plan_kind(saved)
        if kind == "strands":
            _check_strands(saved)
        elif not isinstance(saved[kind], Mapping):
            raise StateMismatchError(kind, type(saved[kind]).__name__, "<a mapping>", _NOT_A_STATE)
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
            accepted=accepted_in(saved),
            **{name: saved[name] for name in _PLAIN if name in saved},
        )

    def plain(self) -> dict[str, Any]:
        """Return the state as a program saves it."""
        saved = {"version": STATE_VERSION, "seed": self.seed, **self.fingerprint}
        saved |= {} if self.sharing is None else self.sharing._asdict()
        saved |= reshards_field(self.reshards, self.epoch)
        saved |= {name: value for name in _PLAIN if (value := getattr(self, name)) not in (None, {})}
        saved |= {_GATHERED: True} if self.is_gathered else {}
        saved |= accepted_field(self.accepted)
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


def checked_loader_state(
    state_dict: object, present: Mapping[str, Any], seed: int | None, kind: PlanKind, acceptance: Acceptance
) -> LoaderState:
    """Return a saved state, after a look at each field.

    Args:
        state_dict: The state.
        present: What the loader that is to load it has in the fields that must be the same.
        seed: The seed that the user has given to the loader; None: none.
        kind: What its plan is of.
        acceptance: What may differ: of these fields, ``window_fn``.

    Raises:
        StateMismatchError: It is no such state, or one of another loader; the error names the first field.
    """
    loaded = LoaderState.read(state_dict)
    state = cast("Mapping[str, Any]", state_dict)
    if seed is not None and loaded.seed != seed:
        raise StateMismatchError("seed", loaded.seed, seed, "pass the loader the seed that the state was saved with")
    saved = _plan_kind(state)
    if saved != kind:
        hint = "the state was saved with another kind of dataset"
        of_other = "stream" if "stream" in (saved, kind) else "strands"
        raise StateMismatchError(of_other, _KINDS[saved], _KINDS[kind], hint)
    if ("window" in state.get("sampler", {}) or "window_fn" in state) and "window_fn" not in present:
        hint = (
            "pass the window_fn, or the on_sample_error, of the run that saved: a step counts microbatches of its rows"
        )
        raise StateMismatchError("window_fn", state.get("window_fn"), None, hint)
    fixed = {name: value for name, value in present.items() if name != "batch_size" or name not in state}
    for name, value in fixed.items():
        if state.get(name, "<missing>") != value:
            hint = "the state was saved with another argument"
            error = StateMismatchError(name, state.get(name, "<missing>"), value, hint)
            if name != "window_fn" or not (state.get(name) and value):
                raise error
            acceptance.settle(error, _price_of_rows(loaded))
            loaded = replace(loaded, fingerprint={**loaded.fingerprint, name: value})
    return loaded


def _price_of_rows(state: LoaderState) -> str:
    """Return what it costs to go on with another window function, in words."""
    sampler = state.sampler
    begun = [sampler.get("row"), *(each[1] for each in sampler.get("begun", ()))]
    num_begun = len(state.strands) if state.strands else sum(map(bool, begun))
    if not num_begun:
        return (
            "the rows that follow are the present function's; no window was begun, so that none is lost or comes again"
        )
    num_samples = num_begun * state.fingerprint["window_size"]
    return (
        f"the rows that follow are the present function's: of each window that was begun, {counted(num_begun, 'window')} at "
        "most, it makes the rows again, and as many as were delivered are left out; where it makes others, rows of up to "
        f"{counted(num_samples, 'sample')} are lost or come again on each rank"
    )


def _plan_kind(state: Mapping[str, Any]) -> PlanKind:
    """Return what the plan of a saved state is of.

    Raises:
        StateMismatchError: The state does not say it.
    """
    found = cast("PlanKind | None", next((kind for kind in PLAN_KINDS if kind in state), None))
    if found is None:
        raise StateMismatchError("sampler", "<missing>", "<a state>", _NOT_A_STATE)
    return found


def entries_of(state_dict: object) -> list[Any] | None:
    """Return the states of ranks that are not in step; None: it is one state."""
    if not isinstance(state_dict, Mapping) or "all_rank_states" not in state_dict:
        return None
    state = cast("Mapping[str, Any]", state_dict)
    check_version(state, STATE_VERSION)
    found = state["all_rank_states"]
    if not isinstance(found, (list, tuple)) or not found:
        raise StateMismatchError("all_rank_states", cast("object", found), "<a state for each rank>")
    return list(cast("Sequence[Any]", found))


def merged_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one state for all ranks, from each rank's in their order.

    Raises:
        StateMismatchError: There are none, or they are of a stream at several positions.
    """
    if not states:
        raise StateMismatchError("local_state_dicts", 0, "<one for each rank>")
    others, fields = zip(*map(split_outstanding, states), strict=True)
    return {**_merged_positions(others), **outstanding_field(fields)}


def split_outstanding(state_dict: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a state without what was not committed, and that, of all ranks that the state is of; None: it has none."""
    if not isinstance(state_dict, Mapping):
        return state_dict, None
    return {name: value for name, value in state_dict.items() if name != OUTSTANDING}, state_dict.get(OUTSTANDING)


def _merged_positions(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if "stream" in states[0]:
        other = next((state for state in states if state.get("stream") != states[0]["stream"]), None)
        if other is not None:
            hint = "ranks of a stream have one state: save it where all have taken equally many microbatches"
            raise StateMismatchError("stream", other.get("stream"), states[0]["stream"], hint)
        return dict(states[0])
    states = [{name: value for name, value in state.items() if name != "rank"} for state in states]
    if len(states) == 1:
        return states[0]
    if 1 < states[0].get("num_ranks", 1) <= len(states) and len({_position_key(state) for state in states}) == 1:
        return {**states[0], _GATHERED: True}
    return {"version": STATE_VERSION, "all_rank_states": [dict(state) for state in states]}


def _position_key(state: Mapping[str, Any]) -> str:
    rows = [state["sampler"].get(field) for field in ("window", "row", "left_out", "num_skipped")]
    return repr([*(state.get(field) for field in _POSITION_FIELDS), checks_in(state["sampler"]), *rows])


def _check_strands(state: Mapping[str, Any]) -> None:
    _check_count(state, "num_strands")
    strands: Any = state["strands"]
    num_strands = max(1, state["num_strands"])
    if not isinstance(strands, list) or len(cast("list[Any]", strands)) != num_strands:
        raise StateMismatchError("strands", cast("object", strands), f"<{num_strands} strands>", _NOT_A_STATE)
    for strand in cast("list[Mapping[str, Any]]", strands):
        for name in ("epoch", "step"):
            _check_count(strand, name)


def _check_count(state: Mapping[str, Any], field: str) -> None:
    minimum = None if field == "seed" else 0
    saved_integer(field, state.get(field, "<missing>"), minimum=minimum, hint=_NOT_A_STATE)
