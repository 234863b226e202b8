"""A loader over loaders: microbatches of several sources in one order, each with the name of its source."""

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, Self, cast

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.acceptance import Acceptance
from fkat_data.errors.arguments import STATE_VERSION, check_version, refused
from fkat_data.errors.wording import Described
from fkat_data.mixing.mixed_source import MixedSource
from fkat_data.mixing.strategies import OnExhausted, SamplerStrategy, Schedule, check_changes
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.plan.iteration import Closing, EpochIterator, Iterations
from fkat_data.plan.state import unsealed
from fkat_data.runtime.distributed import agreed, gather, rank_and_world_size
from fkat_data.runtime.interruption import genuine, is_interruption
from fkat_data.types import Microbatch, Stateful, close_all, with_present_weights

_log = logging.getLogger(__name__)

# What says that a loader's state is of all ranks, which all call its state_dict() then.
_OF_ALL_RANKS = frozenset({"all_rank_indices", "all_rank_states", "gathered"})
_FIELDS_OF_RANK = ("epoch", "draw", "is_over", "exhausted", "left")
_OF_SOURCES = "a call of its source: mixture.dataloaders[name], which has steps and numbers of its own"
_FIELDS_OF_SOURCE = ("delivered", "taken", "epoch", "has_ended")


class DictDataLoader(Described, Closing):
    """Yields the microbatches of several loaders, as a strategy mixes them, each labelled with its source.

    Each ``for`` loop is one epoch of the mixture. Sources go on from one epoch into the next: what is left of a source
    when an epoch ends comes in the next one. After an epoch that was left early, the sources begin again;
    after ``load_state_dict`` the next loop is the rest of the epoch that the state was taken in. Behind an epoch's last
    microbatch, the mixture is at the start of the next epoch; where a source has a state of its own and no ``epoch``, it is
    there once the loop has ended. A newer iterator replaces an older one.

    A resume is exact for sources with a state of their own, such as a ``ShardedDataLoader``, and for those that give
    the same each time they are iterated. ``set_weights`` changes weights in the middle of a run. The strategy may be
    another one after a resume.

    A state of all ranks has each rank's position where they differ, as they do where a source has other numbers of
    microbatches on other ranks; it needs as many ranks then. A state of ranks at one position loads on any number of them
    that the sources' states load on.

    Args:
        dataloaders: The sources by their names: any iterables that can be iterated again and again.
        strategy: Says which source a microbatch is from; over the same names.
        key: The field of a microbatch, then a dict, that gets the name; None yields pairs of name and microbatch.
        on_exhausted: What happens to a source that has nothing left. ``"drop"``: it is left out, and the epoch ends
            when none is left; ``"restart"``: it begins again, and the epoch ends when each has run out once;
            ``"stop"``: the epoch ends.

    Raises:
        ConfigurationError: An argument cannot work.
    """

    def __init__(
        self,
        dataloaders: Mapping[str, Iterable[Microbatch]],
        strategy: SamplerStrategy,
        key: str | None = "dataset",
        *,
        on_exhausted: OnExhausted = "drop",
    ) -> None:
        if not isinstance(dataloaders, Mapping) or not dataloaders:
            raise ConfigurationError("dataloaders", dataloaders, "a mapping from names to loaders, not empty")
        found: list[object] = []
        for name, loader in dataloaders.items():
            if not isinstance(loader, Iterable) or isinstance(loader, Iterator):
                expected = "a loader that can be iterated more than once"
                raise ConfigurationError(f"dataloaders[{name!r}]", cast("object", loader), expected)
            if isinstance(loader, Stateful) and any(loader is other for other in found):
                raise ConfigurationError(f"dataloaders[{name!r}]", loader, "a loader of its own for each source")
            found.append(loader)
        if key is not None and not isinstance(key, str):
            raise ConfigurationError("key", key, "the name of a field, or None")
        self._sources = {name: MixedSource(name, loader) for name, loader in dataloaders.items()}
        self._schedule = Schedule(strategy, self._sources, on_exhausted)
        self._on_exhausted = on_exhausted
        self.key: str | None = key
        self._num_delivered = 0
        self._iterations = Iterations("mixture")
        self._draft = _Draft()
        # A state that is being loaded: an interrupted call has left it to the next one.
        self._loading: Mapping[str, Any] | None = None
        self._accept: Collection[str] = ()  # what may differ in it
        self._is_loaded = False
        # The epoch of the iteration under way: it ends when the schedule is past that.
        self._begun_epoch = 0

    @property
    def dataloaders(self) -> dict[str, Iterable[Any]]:
        """The loaders that it mixes, by name."""
        return {name: source.loader for name, source in self._sources.items()}

    @property
    def strategy(self) -> SamplerStrategy:
        """The strategy that chooses the loader of the next microbatch: the given one, or it with the weights that were set."""
        self._settle()
        return self._schedule.strategy

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch, from 0."""
        self._settle()
        return self._schedule.epoch

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""
        self._settle()
        return self._step

    @property
    def delivered(self) -> dict[str, int]:
        """Microbatches of that epoch that each source has given before it."""
        self._settle()
        return {name: source.delivered for name, source in self._sources.items()}

    def __iter__(self) -> Iterator[Microbatch]:
        """Begin an epoch, or the rest of one after ``load_state_dict``; an older iterator ends."""
        self._settle()
        if is_left_early := self._step > 0 and not self._is_loaded:
            self._iterations.leave(self._schedule.epoch, self._step)
        self._iterations.begin()
        if is_left_early:
            for source in self._sources.values():
                source.end_pass()  # also a loaded one of which nothing has come
        self._draft.begin(self._snapshot())
        if is_left_early:
            for source in self._sources.values():
                source.forget_pass()
            self._end_epoch()
        for source in self._sources.values():
            source.go_on()
        if not self._is_loaded:
            self._begin_epoch()
        self._begun_epoch = self._schedule.epoch
        self._draft.end()
        return EpochIterator(self._next, self._draft, self._iterations, self)

    samples_of: ClassVar[Callable[..., NoReturn]] = refused("samples_of", "<steps of a mixture>", _OF_SOURCES)
    exclude: ClassVar[Callable[..., NoReturn]] = refused("exclude", "<samples of a mixture>", _OF_SOURCES)
    exclude_steps: ClassVar[Callable[..., NoReturn]] = refused("exclude_steps", "<steps of a mixture>", _OF_SOURCES)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Draw by other weights from the next microbatch on, in later epochs too, until they are set again.

        Each draw keeps its random number; sources keep their positions. A state has the weights, and from where on they
        count. Every rank makes the call, at the same step: it is collective where torch.distributed is initialised.

        Args:
            weights: As for ``Weighted``, a weight greater than 0 for each source.

        Raises:
            ConfigurationError: The strategy is not ``Weighted``, or a weight is missing or not valid.
            RankMismatchError: Ranks call it at different steps or with other weights, or one calls something else;
                nothing has changed then.
        """
        self._settle()
        schedule = self._schedule
        strategy = agreed("set_weights()", schedule.epoch, schedule.draw, lambda: schedule.with_weights(weights))
        schedule.change(strategy)

    def with_present_weights(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Return an earlier state of this loader, with the weights that were set since and count from later draws on.

        For trainers that have taken microbatches ahead of the caller, who has set weights behind those.
        """
        saved = state_dict["sources"]
        sources = {
            name: {**saved[name], "state": with_present_weights(source.loader, saved[name]["state"])}
            for name, source in self._sources.items()
        }
        return {**state_dict, "strategy": self._schedule.saved_strategy(), "sources": sources}

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        # Attributes, unless a state is left to the next call.
        yield "epoch", self.epoch
        yield "step", self.step
        yield "strategy", self._schedule.strategy
        yield "num_sources", len(self._sources)
        yield "sources", ", ".join(self._sources)

    @property
    def _step(self) -> int:
        return sum(source.delivered for source in self._sources.values())

    def __len__(self) -> int:
        """Return the microbatches in an epoch.

        Raises:
            TypeError: It is not known beforehand: a source has no length, or sources begin again or go on.
        """
        if self._on_exhausted != "drop":
            raise TypeError(
                f"the number of microbatches is not known beforehand with on_exhausted={self._on_exhausted!r}"
            )
        return sum(len(cast("Any", source.loader)) for source in self._sources.values())

    def __bool__(self) -> bool:
        """Return True, even for a loader without microbatches."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the position: what was delivered, not what was prefetched.

        Plain values, and whatever the sources' own states hold. Where a source's ``state_dict`` is collective, as a
        ``ShardedDataLoader``'s is, this is too: every rank must call it.
        """
        own = self._state_with({name: source.state_dict() for name, source in self._settled_sources().items()})
        states: list[object] = [unsealed(source["state"]) for source in own["sources"].values()]
        fields = {field for state in states if isinstance(state, Mapping) for field in cast("Mapping[str, Any]", state)}
        is_collective = not _OF_ALL_RANKS.isdisjoint(fields)
        return _with_ranks(own, gather(_rank_fields(own))) if is_collective else own

    def local_state_dict(self) -> dict[str, Any]:
        """Return this rank's position, with each source's ``local_state_dict`` where it has one; not collective."""
        return self._state_with({name: source.local_state_dict() for name, source in self._settled_sources().items()})

    def merge_state_dicts(self, local_state_dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what ``state_dict`` would return, from every rank's ``local_state_dict`` in the order of ranks.

        Raises:
            StateMismatchError: One of them is no local state, or they are of different runs or have other weights set.
        """
        if not local_state_dicts:
            raise StateMismatchError("local_state_dicts", 0, "<one for each rank>")
        for state_dict in local_state_dicts:
            self._check(state_dict)
        check_changes([state_dict.get("strategy") for state_dict in local_state_dicts])
        whole = {
            **local_state_dicts[0],
            "sources": {
                name: source.merged([state_dict["sources"][name] for state_dict in local_state_dicts])
                for name, source in self._sources.items()
            },
        }
        return _with_ranks(whole, [_rank_fields(state_dict) for state_dict in local_state_dicts])

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered: the next iteration begins the next epoch, and every source again.

        Where nothing of the epoch was delivered, nothing changes.
        """
        if not self.step:
            return
        self._iterations.begin()
        # Sources first: where this is interrupted, the next iteration or call leaves the epoch as well.
        for source in self._sources.values():
            source.end_pass()
        for source in self._sources.values():
            source.forget_pass()
        self._end_epoch()

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered, for a caller that has lost it: the next call delivers it again.

        Returns:
            False if there was another call for a microbatch, or an iteration, since; or if the source has no
            ``take_back()`` itself: nothing changes then.
        """
        self._settle()
        before = self._draft.before_last
        if before is None or before[0] != self._iterations.newest:
            return False
        _, _, _, sources = before
        givers = (source for name, source in self._sources.items() if source.has_given_since(sources[name]))
        if not all(source.take_back() for source in givers):
            return False
        self._draft.begin(before)
        self._settle()
        return True

    @property
    def acceptable_fields(self) -> tuple[str, ...]:
        """The fields of its sources' states that ``load_state_dict`` can accept where they differ."""
        fields = (field for source in self._sources.values() for field in source.acceptable_fields)
        return tuple(dict.fromkeys(fields))

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Go to a saved position: the next iteration begins at the first microbatch that was not delivered before it.

        An iteration under way ends: its iterator raises ``StaleIteratorError``.

        Args:
            state_dict: The state.
            accept: Fields that may differ in the states of the sources, of ``acceptable_fields``; see ``DataLoader``.

        Raises:
            ConfigurationError: ``accept`` names another field.
            StateMismatchError: It is no state of a mixture of these sources, or of another number of ranks that were at
                other positions. If it is a source's own state that belongs to another loader, sources before it have moved;
                load another state then.
        """
        acceptance = Acceptance(accept, self.acceptable_fields)
        self._check_form(state_dict)
        state_dict = _own_state(state_dict, *rank_and_world_size())
        self._check(state_dict)
        self._settle()
        self._schedule.load_state_dict(state_dict)
        self._accept = acceptance.asked
        self._loading = state_dict
        self._finish_loading(state_dict)
        saved = state_dict.get("strategy", "<unknown>")
        if not self._schedule.is_given_in(saved):
            _log.warning("the mixture goes on as %r; it was saved as %s", self._schedule.given, saved)

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far: how often each source was seen, and the rest added up where they have statistics."""
        found: list[LoaderStatistics] = []
        for source in self._sources.values():
            statistics = getattr(source.loader, "statistics", None)
            if callable(statistics):
                found.append(cast("LoaderStatistics", statistics()))
        # In the terms of the sources' class, if they have one.
        kinds = {type(statistics) for statistics in found}
        kind = kinds.pop() if len(kinds) == 1 else LoaderStatistics
        seen = {name: source.seen for name, source in self._sources.items()}
        return replace(kind.together(found), delivered=self._num_delivered, seen=seen)

    def close(self) -> None:
        """Close every source that can be closed, and end the iteration under way; any number of calls."""
        self._iterations.begin()
        self._undo()  # later, it would bring back the iterations that end here
        for source in self._sources.values():
            source.stop()
            close_all([source.loader])

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: the same arguments, and this position, at which its first iteration goes on."""
        loading = (
            None if all(not source.is_used for source in self._settled_sources().values()) else self.local_state_dict()
        )
        begins = {"_iterations": Iterations("mixture"), "_draft": _Draft(), "_num_delivered": 0, "_loading": loading}
        return {**vars(self), **begins, "_accept": ()}

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        sources = {name: copy.copy(source) for name, source in self._sources.items()}
        vars(copied).update(self.__getstate__(), _sources=sources, _schedule=copy.copy(self._schedule))
        return copied

    def _next(self) -> Microbatch:
        self._settle()
        if self._schedule.epoch != self._begun_epoch:
            self._draft.before_last = None
            raise StopIteration
        self._draft.begin(self._snapshot())
        return self._take()

    def _check(self, state_dict: object) -> None:
        saved = self._check_form(state_dict)["sources"]
        for name, source in self._sources.items():
            source.check(saved[name])

    def _check_form(self, state_dict: object) -> Mapping[str, Any]:
        if not isinstance(state_dict, Mapping):
            raise StateMismatchError("state_dict", state_dict, "<a mixture's state>")
        state = cast("Mapping[str, Any]", state_dict)
        check_version(state, STATE_VERSION)
        sources = state.get("sources", "<missing>")
        if not isinstance(sources, Mapping) or set(cast("Mapping[str, Any]", sources)) != set(self._sources):
            names = sorted(cast("Mapping[str, Any]", sources)) if isinstance(sources, Mapping) else sources
            raise StateMismatchError("sources", names, sorted(self._sources), "it is the state of other sources")
        return state

    def _settled_sources(self) -> dict[str, MixedSource]:
        self._settle()
        return self._sources

    def _state_with(self, sources: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "strategy": self._schedule.saved_strategy(),
            **self._schedule.state_dict(),
            "sources": sources,
        }

    def _settle(self) -> None:
        """Undo what an interrupted call has done, or finish it."""
        if self._loading is not None:
            self._finish_loading(self._loading)
        self._undo()

    def _undo(self) -> None:
        snapshot = self._draft.snapshot
        if snapshot is None:
            return
        if snapshot is _DELIVERED:
            for source in self._sources.values():
                source.release()
            self._draft.end()
            return
        _, counts, schedule, sources = snapshot
        self._num_delivered, self._is_loaded, self._begun_epoch = counts
        self._schedule.restore(schedule)
        for name, source in self._sources.items():
            source.restore(sources[name])
        self._draft.end()

    def _snapshot(self) -> tuple[Any, ...]:
        return (
            self._iterations.newest,
            (self._num_delivered, self._is_loaded, self._begun_epoch),
            self._schedule.snapshot(),
            {name: source.snapshot() for name, source in self._sources.items()},
        )

    def _finish_loading(self, state_dict: Mapping[str, Any]) -> None:
        self._iterations.begin()
        self._schedule.load_state_dict(state_dict)
        self._is_loaded = True
        try:
            for name, source in self._sources.items():
                source.load_state_dict(state_dict["sources"][name], self._accept)
        except Exception as error:
            # An interruption leaves the state to the next call. A state that a source refuses would end each of them.
            if not is_interruption(error):
                self._loading = None
            raise
        self._loading = None
        self._draft.end()

    def _take(self) -> Microbatch:
        while (name := self._schedule.source()) is not None:
            source = self._sources[name]
            try:
                microbatch = source.take()
            except genuine(StopIteration):
                # A pass that was at its end when the epoch began has not run out in this epoch.
                is_of_this_epoch = source.delivered > 0 or source.taken == 0
                if not is_of_this_epoch or self._schedule.ran_out(name, is_empty=source.taken == 0):
                    source.begin()
                continue
            self._schedule.drawn()
            self._num_delivered += 1
            self._is_loaded = False
            labelled = self._labelled(name, microbatch)
            self._end_epoch_if_known()
            return labelled
        was_loaded = self._is_loaded
        self._end_epoch()
        if was_loaded:
            # Resumed where nothing was left: the caller gets the next epoch, not an empty one.
            self._begun_epoch = self._schedule.epoch
            self._begin_epoch()
            return self._take()
        self._draft.end()
        raise StopIteration

    def _end_epoch_if_known(self) -> None:
        """Count the epoch as delivered if it is known to have no other microbatch, though no source was asked for one."""
        before = self._schedule.snapshot()
        try:
            while (name := self._schedule.source()) is not None:
                source = self._sources[name]
                if not source.delivered or not source.is_over or self._schedule.ran_out(name, is_empty=False):
                    self._schedule.restore(before)
                    return
        except genuine(Exception):  # comes in its turn, with the next microbatch
            self._schedule.restore(before)
            return
        self._end_epoch()

    def _begin_epoch(self) -> None:
        for source in self._sources.values():
            if not source.is_begun:
                source.begin()

    def _end_epoch(self) -> None:
        self._schedule.begin(self._schedule.epoch + 1)
        self._is_loaded = False
        for source in self._sources.values():
            source.delivered = 0

    def _labelled(self, name: str, microbatch: Microbatch) -> Microbatch:
        if self.key is None:
            return name, microbatch
        if not isinstance(microbatch, Mapping):
            found = f"<{type(microbatch).__name__} from {name!r}>"
            raise ConfigurationError("key", self.key, f"None, as microbatches are no mappings: {found}")
        if self.key in microbatch:
            raise ConfigurationError("key", self.key, f"a field that microbatches from {name!r} do not have")
        return {**cast("Mapping[Any, Any]", microbatch), self.key: name}


_DELIVERED: tuple[Any, ...] = ("delivered",)


class _Draft:
    """The changes of a call before its microbatch is delivered: a snapshot from before it, which undoes them."""

    def __init__(self) -> None:
        self.snapshot: tuple[Any, ...] | None = None
        """From before the call that is under way, or was interrupted; ``_DELIVERED`` after one that has delivered.

        None where an interrupted call was undone, too: what it took from a source without a state is still to be delivered.
        """
        self.before_last: tuple[Any, ...] | None = None
        """A snapshot from before the call that has delivered last; None: another call has begun since."""

    def begin(self, snapshot: tuple[Any, ...]) -> None:
        """Begin a call."""
        self.before_last = None
        self.snapshot = snapshot

    def end(self) -> None:
        """Let what was changed stay."""
        self.snapshot = None

    def hand_over(self, microbatch: Microbatch) -> Microbatch:
        """Let what was changed stay, and return the microbatch: the last thing that a call does."""
        snapshot = self.snapshot
        try:
            self.before_last = snapshot
            self.snapshot = _DELIVERED
            return microbatch  # noqa: TRY300 - a tracing debugger may raise here, after the count
        except BaseException:
            self.before_last = None
            self.snapshot = snapshot
            raise


def _rank_fields(state: Mapping[str, Any]) -> list[list[Any]]:
    """Return the values of a rank's position: of its schedule's fields, and of each source's."""
    sources = [[source[field] for field in _FIELDS_OF_SOURCE] for source in state["sources"].values()]
    return [[state[field] for field in _FIELDS_OF_RANK], *sources]


def _with_rank(state: Mapping[str, Any], fields: Sequence[Sequence[Any]]) -> dict[str, Any]:
    sources = {
        name: {**source, **dict(zip(_FIELDS_OF_SOURCE, values, strict=True))}
        for (name, source), values in zip(state["sources"].items(), fields[1:], strict=True)
    }
    return {**state, **dict(zip(_FIELDS_OF_RANK, fields[0], strict=True)), "sources": sources}


def _with_ranks(state: Mapping[str, Any], ranks: Sequence[list[list[Any]]]) -> dict[str, Any]:
    """Return a state of all ranks: where their positions differ, a tuple of each field's values.

    The fields are the same in any case: torch.distributed.checkpoint reads those that the present state has.
    """
    if all(fields == ranks[0] for fields in ranks):
        return dict(state)
    return _with_rank(state, [list(zip(*parts, strict=True)) for parts in zip(*ranks, strict=True)])


def _own_state(state: Mapping[str, Any], rank: int, world_size: int) -> Mapping[str, Any]:
    """Return a state with this rank's position.

    Raises:
        StateMismatchError: It has the positions of another number of ranks, which differ.
    """
    draws = state.get("draw")
    if not isinstance(draws, (list, tuple)):
        return state
    num_ranks = len(cast("Sequence[object]", draws))
    try:
        together = _rank_fields(state)
        ranks = [[[values[index] for values in part] for part in together] for index in range(num_ranks)]
    except genuine(TypeError, KeyError, IndexError):
        hint = "the state is damaged"
        raise StateMismatchError("draw", cast("object", draws), "<a value of each rank in each field>", hint) from None
    if num_ranks == world_size:
        return _with_rank(state, ranks[rank])
    (epoch, *_), *_ = ranks[0]
    if all(own[:3] == [epoch, 0, False] and all(part[3] or not part[1] for part in parts) for own, *parts in ranks):
        return _with_rank(state, ranks[0])  # all are between two epochs, and no pass is under way
    raise StateMismatchError(
        "draw",
        f"<of {num_ranks} ranks at other positions>",
        f"<of {world_size} ranks>",
        "the sources of the ranks have different numbers of microbatches, so the ranks are at "
        "different positions of the mixture: resume with the number of ranks that saved, or, if each "
        "rank loads its own state, pass it its local_state_dict()",
    )
