"""What of a saved state may differ from the loader that loads it, where the caller says so, and at which price.

``load_state_dict(state, accept={"files"})`` asks for it, or ``accepting("files")`` where a framework makes that call. What
was accepted is in the states that follow, as
``[{"field": "files", "epoch": 2, "step": 40}]`` in the field ``accepted``; a state without it had nothing to accept.
"""

import logging
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.arguments import saved_integer
from fkat_data.runtime.interruption import genuine

_logger = logging.getLogger(__name__)
_FIELD = "accepted"
_named_around: ContextVar[frozenset[str]] = ContextVar("fkat_data_accepting", default=frozenset())


@contextmanager
def accepting(*fields: str) -> Generator[None]:
    """Accept fields of states that differ in each ``load_state_dict`` within: a framework calls it without ``accept``.

    A loader that does not know a field passes it over. Loads in other threads do not accept it.

    Args:
        fields: What ``accept`` would name.
    """
    before = _named_around.set(_named_around.get() | frozenset(fields))
    try:
        yield
    finally:
        _named_around.reset(before)


class AcceptedField(NamedTuple):
    """A field of a state that differed, and was accepted.

    Attributes:
        field: Its name.
        epoch: The epoch of the state's position.
        step: Microbatches of that epoch that were delivered before; of a stream, samples that all ranks had.
    """

    field: str
    epoch: int
    step: int


class Acceptance:
    """What one load of a state may accept, and what it has accepted.

    Args:
        accept: The fields that the caller has named.
        known: Those that the loader can accept.

    Raises:
        ConfigurationError: The loader cannot accept one of them.
    """

    def __init__(self, accept: Collection[str] = (), known: Collection[str] = ()) -> None:
        if isinstance(accept, str) or not set(accept) <= set(known):
            raise ConfigurationError("accept", accept, f"a set of fields that this loader accepts: {sorted(known)}")
        self.asked: frozenset[str] = frozenset(accept) | (_named_around.get() & frozenset(known))
        """The fields that the caller has named."""
        self._accepted: list[str] = []

    def __contains__(self, name: str) -> bool:
        """Return whether the caller has named a field."""
        return name in self.asked

    def settle(self, error: StateMismatchError, price: str) -> None:
        """Log what differs, and keep that it is accepted, once a load.

        Args:
            error: It: for a field such as ``fingerprint.shards`` or ``files[3]``, the caller names ``shards`` or ``files``.
            price: What the load costs nevertheless, with the number of samples.

        Raises:
            StateMismatchError: It is not accepted. The message says how to accept it, and the price.
        """
        name = name_of(error.field)
        if name not in self.asked:
            remedy = f"load_state_dict(state, accept={{{name!r}}}) loads it all the same, at the price that {price}"
            hint = f"{error.hint}; {remedy}" if error.hint else remedy
            raise StateMismatchError(error.field, error.saved, error.present, hint)
        if name not in self._accepted:
            self._accepted.append(name)
            difference = f"saved {error.saved}, present {error.present}"
            _logger.warning("state field %r is accepted: %s; the price is that %s", error.field, difference, price)

    def after(self, earlier: Iterable[AcceptedField], epoch: int, step: int) -> tuple[AcceptedField, ...]:
        """Return what was accepted before and now, for a state at a position."""
        return (*earlier, *(AcceptedField(name, epoch, step) for name in self._accepted))


def name_of(field: str) -> str:
    """Return by which name a field of a state is accepted."""
    return field.rpartition(".")[2].partition("[")[0]


def accepted_field(accepted: Sequence[AcceptedField]) -> dict[str, Any]:
    """Return the field of a state for what was accepted; no field for nothing.

    A tuple, which torch.distributed.checkpoint saves whole.
    """
    return {_FIELD: tuple(each._asdict() for each in accepted)} if accepted else {}


def accepted_in(state: Mapping[str, Any]) -> tuple[AcceptedField, ...]:
    """Return what was accepted before a state was saved.

    Raises:
        StateMismatchError: The field is damaged.
    """
    found: Any = state.get(_FIELD, ())
    try:
        return tuple(
            AcceptedField(str(each["field"]), *(saved_integer(_FIELD, each[name]) for name in ("epoch", "step")))
            for each in cast("Sequence[Any]", found)
        )
    except genuine(AttributeError, TypeError, KeyError):
        raise StateMismatchError(_FIELD, found, "<a field, an epoch and a step for each>") from None
