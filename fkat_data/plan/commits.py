"""Which delivered microbatches the caller has committed, and the part of a state that says what it has not.

A state has the position behind the last microbatch that was delivered, as any other has, and beside it, in ``outstanding``,
what of those before it is not committed: for each rank, each microbatch's ticket and what it consists of, in plain values.
So any process of any rank makes it again, and nothing is made that is committed::

    ({"dp_rank": 0, "num_ranks": 2, "layout": 0, "microbatches": [
        [[epoch, step, dp_rank, layout], [[payload, task_index, first_microbatch, [dp_rank, task_index], left_out]]],
    ]},)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from fkat_data.errors import ConfigurationError, OutstandingError, StateMismatchError, arguments
from fkat_data.errors.wording import counted
from fkat_data.plan.position import Position, Task, TaskOrigin
from fkat_data.runtime.distributed import rank_and_world_size
from fkat_data.runtime.interruption import genuine

#: The field of a state, where microbatches are committed by the caller.
OUTSTANDING = "outstanding"
_HINT = "the state was not saved by a loader with commit='manual', or is damaged"


class Ticket(NamedTuple):
    """The name of a microbatch that was delivered: the same after a resume, and on another rank that gets it.

    ``Ticket(*fields)`` makes it of its fields again, which are numbers.

    Attributes:
        epoch: The epoch.
        step: Microbatches of that epoch that were delivered before it on its rank.
        dp_rank: The rank that it was first delivered on.
        layout: How often the number of ranks had changed by then.
    """

    epoch: int
    step: int
    dp_rank: int
    layout: int = 0


class SavedPayload(NamedTuple):
    """A task's payload as a state has it: the plan makes the payload of it."""

    value: Any


class TicketedRank(NamedTuple):
    """A rank whose microbatches the caller commits.

    Attributes:
        ledger: What it has not committed.
        dp_rank: The rank, among those that the samples are dealt out to.
    """

    ledger: "CommitLedger"
    dp_rank: int


CommitMode: TypeAlias = Literal["delivery", "manual"]
"""When a microbatch counts as used: when it is delivered, or when the caller says so."""
_MODES: tuple[CommitMode, ...] = get_args(CommitMode)


class CommitLedger:
    """The microbatches that were delivered and are not committed.

    It is used from the thread that iterates the loader.

    Args:
        max_outstanding: Microbatches that may be delivered and neither committed nor released; None: any number.
        epochs_ahead: Epochs that may be delivered before all of an earlier one is committed.
    """

    def __init__(self, max_outstanding: int | None, epochs_ahead: int) -> None:
        self._max_outstanding = max_outstanding
        self._epochs_ahead = epochs_ahead
        # The tasks that make each microbatch; a window's may need the windows before it.
        self._outstanding: dict[Ticket, tuple[Task, ...]] = {}
        self._released: dict[Ticket, tuple[Task, ...]] = {}
        self._newest: Ticket | None = None
        self._layout = 0

    @property
    def ticket(self) -> Ticket:
        """The ticket of the microbatch that was delivered last.

        Raises:
            ConfigurationError: None was, or it was taken back.
        """
        if self._newest is None:
            raise ConfigurationError(
                "ticket", None, "a microbatch that was delivered since the loader was made or loaded"
            )
        return self._newest

    @property
    def num_outstanding(self) -> int:
        """Microbatches that were delivered, and neither committed nor released."""
        return len(self._outstanding)

    def commit(self, ticket: Ticket) -> None:
        """Count a microbatch as used; one that waits to be delivered again is not delivered any more.

        Raises:
            ConfigurationError: It is not outstanding.
        """
        waiting = self._outstanding if ticket in self._outstanding else self._released
        self._check(ticket, waiting)
        del waiting[ticket]

    def release(self, ticket: Ticket) -> None:
        """Have a microbatch delivered again, before new ones.

        Raises:
            ConfigurationError: It is not outstanding.
        """
        self._check(ticket, self._outstanding)
        self._released[ticket] = self._outstanding[ticket]
        del self._outstanding[ticket]

    def _check(self, ticket: Ticket, waiting: Mapping[Ticket, Any]) -> None:
        if ticket not in waiting:
            raise ConfigurationError(
                "ticket",
                ticket,
                f"one of the {counted(self.num_outstanding, 'microbatch')} that are outstanding: delivered since the loader was "
                "made or loaded, and neither committed nor released",
            )

    def deliver(self, position: Position, dp_rank: int, tasks: tuple[Task, ...]) -> None:
        """Note the microbatch at a position of a rank, which is about to be delivered, and the tasks that make it."""
        self._deliver(Ticket(position.epoch, position.step, dp_rank, self._layout), tasks)

    def deliver_again(self, ticket: Ticket) -> None:
        """Note that a released microbatch is delivered again."""
        self._deliver(ticket, self._released[ticket])
        del self._released[ticket]

    def _deliver(self, ticket: Ticket, tasks: tuple[Task, ...]) -> None:
        self._outstanding[ticket] = tasks
        self._newest = ticket

    def take_back(self, *, is_new: bool) -> bool:
        """Count the microbatch that was delivered last as not delivered; return False if it is not outstanding any more.

        Args:
            is_new: Whether new ones begin with it again; else it is released.
        """
        ticket, self._newest = self._newest, None
        tasks = None if ticket is None else self._outstanding.pop(ticket, None)
        if ticket is None or tasks is None:
            return False
        if not is_new:
            self._released = {ticket: tasks, **self._released}
        return True

    def next_released(self) -> tuple[Ticket, tuple[Task, ...]] | None:
        """Return the microbatch to deliver next, if one was released; raise if too many are outstanding.

        Raises:
            OutstandingError: As many are outstanding as may be.
        """
        if self._max_outstanding is not None and self.num_outstanding >= self._max_outstanding:
            limit = f"at most {self._max_outstanding:,} may be (max_outstanding)"
            raise OutstandingError(self.num_outstanding, *min(self._outstanding)[:2], limit)
        return next(iter(self._released.items()), None)

    def upcoming(self, epoch: int, step: int) -> tuple[int, int]:
        """Return epoch and step of the next microbatch, where those of the next new one are these."""
        first = next(iter(self._released), None)
        return (epoch, step) if first is None else first[:2]

    def begin(self, epoch: int) -> bool:
        """Return whether an iteration that begins now gives nothing but what was released of epochs that have to end.

        Args:
            epoch: The epoch that it is of otherwise.

        Raises:
            OutstandingError: An earlier epoch has to end, and some of it is outstanding.
        """
        first = epoch - self._epochs_ahead
        if any(ticket.epoch < first for ticket in self._released):
            return True
        late = [ticket for ticket in self._outstanding if not first <= ticket.epoch <= epoch]
        if late:
            limit = f"epoch {epoch} begins when all before it is committed, or released and delivered again"
            hint = "" if self._epochs_ahead else ", unless epochs_ahead=1"
            raise OutstandingError(len(late), *min(late)[:2], f"{limit}{hint}")
        return False

    def saved(
        self, position: Position, dp_rank: int, num_ranks: int, save_payload: Callable[[Any, int], Any]
    ) -> tuple[dict[str, Any]]:
        """Return the field of a state.

        Args:
            position: Behind the last microbatch that was delivered: a call that was interrupted has noted the next one.
            dp_rank: This rank.
            num_ranks: Ranks that the samples are dealt out to.
            save_payload: Returns a payload, for one of its microbatches, as plain values.
        """
        known = {**self._outstanding, **self._released}
        at = position.epoch, position.step
        microbatches = [
            [list(ticket), [_saved_task(task, save_payload) for task in tasks]]
            for ticket, tasks in sorted(known.items(), key=lambda item: item[0])
            if ticket[2:] != (dp_rank, self._layout) or ticket[:2] < at
        ]
        ranks = {"dp_rank": dp_rank, "num_ranks": num_ranks, "layout": self._layout}
        return ({**ranks, "microbatches": microbatches},)

    def load(self, loaded: "LoadedOutstanding") -> None:
        """Have the microbatches of a state delivered before all others."""
        self._outstanding, self._newest, self._layout = {}, None, loaded.layout
        self._released = dict(map(_read, loaded.microbatches))

    def of_copy(self, *, is_at_load: bool) -> "CommitLedger":
        """Return the ledger of a copy of the loader, which has what was loaded, or begins its epoch again."""
        copied = CommitLedger(self._max_outstanding, self._epochs_ahead)
        copied._layout = self._layout
        copied._released = dict(self._released) if is_at_load else {}
        return copied


class LoadedOutstanding(NamedTuple):
    """A rank's part of what the ranks of a state had outstanding.

    Attributes:
        microbatches: As the state has them.
        layout: How often the number of ranks has changed by now.
    """

    microbatches: Sequence[Any] = ()
    layout: int = 0


def commit_ledger(commit: object, max_outstanding: object, epochs_ahead: object) -> CommitLedger | None:
    """Return the ledger that a loader's arguments ask for; None: what is delivered counts as used.

    Raises:
        ConfigurationError: One of them is invalid.
    """
    if max_outstanding is not None:
        max_outstanding = arguments.integer("max_outstanding", max_outstanding, minimum=1)
    epochs_ahead = arguments.integer("epochs_ahead", epochs_ahead, minimum=0, maximum=1)
    if arguments.choice("commit", commit, _MODES) == "manual":
        return CommitLedger(max_outstanding, epochs_ahead)
    if max_outstanding is not None or epochs_ahead:
        raise ConfigurationError("commit", commit, "'manual', with max_outstanding or epochs_ahead")
    return None


def required_ledger(ledger: CommitLedger | None) -> CommitLedger:
    """Return a loader's ledger.

    Raises:
        ConfigurationError: It has none.
    """
    if ledger is None:
        raise ConfigurationError(
            "commit", "delivery", "'manual', in the loader's arguments, to commit microbatches by tickets"
        )
    return ledger


def outstanding_field(of_ranks: Sequence[Sequence[Any] | None]) -> dict[str, tuple[Any, ...]]:
    """Return the field of a state of all ranks, from that of each rank's; no field where none has one."""
    found = [each for own in of_ranks if own is not None for each in own]
    return {OUTSTANDING: tuple(found)} if found else {}


def own_outstanding(field: Any, num_ranks: int, dp_rank: int, *, is_manual: bool) -> LoadedOutstanding:
    """Return this rank's part of what ranks had outstanding: its own, or, of other ranks, every nth of all.

    Args:
        field: That of a state; None: it has none, since all that was delivered counts as used.
        num_ranks: Ranks that the samples are dealt out to.
        dp_rank: This rank.
        is_manual: Whether this loader's microbatches are committed by the caller.

    Raises:
        StateMismatchError: It is damaged, or does not have what all of the other ranks had outstanding; or this loader would
            lose it.
    """
    if field is None:
        return LoadedOutstanding()
    try:
        found = {each["dp_rank"]: (each["num_ranks"], [*each["microbatches"]]) for each in field}
        in_order = [[*each["microbatches"]] for each in field]
        for microbatch in (microbatch for own in in_order for microbatch in own):
            _read(microbatch)
        num_saved = next(iter(found.values()))[0]
        layout = max(int(each["layout"]) for each in field) + (num_saved != num_ranks)
    except genuine(Exception):
        raise StateMismatchError(OUTSTANDING, field, "<a list for each rank>", _HINT) from None
    rank, world_size = rank_and_world_size()
    if num_saved == num_ranks and len(in_order) == world_size:
        own = in_order[rank]
    elif num_saved == num_ranks and (dp_rank in found or len(in_order) == 1):
        own = found[dp_rank][1] if dp_rank in found else in_order[0]
    elif num_saved != num_ranks and set(found) == set(range(num_saved)):
        own = sorted(microbatch for _, each in found.values() for microbatch in each)[dp_rank::num_ranks]
    else:
        hint = "load what state_dict() returns on all ranks, or merge_state_dicts() of each rank's local_state_dict()"
        raise StateMismatchError(OUTSTANDING, f"<of ranks {sorted(found)}>", f"<of all {num_saved} ranks>", hint)
    if own and not is_manual:
        hint = "pass commit='manual', as the run that saved: what it had not committed would be lost"
        raise StateMismatchError(OUTSTANDING, f"<{counted(len(own), 'microbatch')}>", "<none>", hint)
    return LoadedOutstanding(own, layout)


def _saved_task(task: Task, save_payload: Callable[[Any, int], Any]) -> list[Any]:
    origin = list(cast("TaskOrigin", task.origin)[:2])
    number, payload = task.first_microbatch, task.payload
    plain = payload.value if isinstance(payload, SavedPayload) else save_payload(payload, number)
    return [plain, task.task_index, number, origin, list(task.left_out)]


def _read(microbatch: Any) -> tuple[Ticket, tuple[Task, ...]]:
    fields, saved = cast("tuple[list[int], list[Any]]", microbatch)
    ticket = Ticket(*map(int, fields))
    tasks = (
        Task(
            0,
            ticket.epoch,
            index,
            SavedPayload(plain),
            number,
            TaskOrigin(origin[0], origin[1], 0),
            left_out=tuple(left_out),
        )
        for plain, index, number, origin, left_out in saved
    )
    return ticket, tuple(tasks)
