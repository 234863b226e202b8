"""The iterations over a loader, one microbatch ahead of the loop, and the place that the loop has reached."""

from collections.abc import Iterator, Mapping
from typing import Any

from fkat_data.accelerated import rest_or_next, with_end
from fkat_data.distributed import gather
from fkat_data.errors import FkatDataError, StateMismatchError

__all__ = ["Course"]

_VERSION = 1


class Course:
    """Iterates over a loader, and knows the place after each microbatch that the loop has received.

    Args:
        loader: Any loader of this library.

    Attributes:
        loader: The same.
        step: Microbatches of the epoch that the loop has received.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.step = 0
        self._loaded_step: int | None = None
        self._place: Any = None
        self._has_local_states = callable(getattr(loader, "local_state_dict", None)) and callable(
            getattr(loader, "merge_state_dicts", None)
        )

    def microbatches(self) -> Iterator[tuple[Any, bool]]:
        """Begin an epoch, or the rest of one; yield each microbatch, and whether it is the last."""
        self.step, may_be_over = self._loaded_step or 0, self._loaded_step == 0
        self._loaded_step = None
        for (microbatch, place), is_last in with_end(rest_or_next(self._placed, may_be_over=may_be_over)):
            # Last of all: if the look-ahead is interrupted, the loop does not have this microbatch.
            self._place, self.step = place, 0 if is_last else self.step + 1
            yield microbatch, is_last

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last microbatch that the loop has received; collective if the loader's is.

        Raises:
            FkatDataError: The loader has no state for this place.
        """
        place = self._reached() if self._place is None else self._place
        if isinstance(place, FkatDataError):
            raise place
        state = self.loader.merge_state_dicts(gather(place)) if self._has_local_states else place
        return {"version": _VERSION, "step": self.step, "loader": state}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved place: the next iteration begins there.

        Raises:
            StateMismatchError: It is no such state, or belongs to another plan.
        """
        if not isinstance(state_dict, Mapping) or not {"version", "step", "loader"} <= set(state_dict):
            raise StateMismatchError("loader", "<missing>", "<a state that fkat_data.huggingface saved>")
        if state_dict["version"] != _VERSION:
            hint = "another version of fkat_data wrote the state"
            raise StateMismatchError("version", state_dict["version"], _VERSION, hint)
        self.loader.load_state_dict(state_dict["loader"])
        self.step = self._loaded_step = state_dict["step"]
        self._place = None

    def _placed(self) -> Iterator[tuple[Any, Any]]:
        """Begin an iteration; yield each microbatch, and the loader's place after it."""
        iterator = iter(self.loader)
        self._place = self._reached()
        return ((microbatch, self._reached()) for microbatch in iterator)

    def _reached(self) -> Any:
        """Return the loader's own place; or why there is none, for a caller that asks."""
        try:
            return self.loader.local_state_dict() if self._has_local_states else self.loader.state_dict()
        except FkatDataError as error:
            return error
