"""Where the loaders of a Trainer stood before it took anything from them: learning rate finders bring them back there."""

from collections.abc import Iterable
from typing import Any

from fkat_data.lightning.feed_position import is_ours


class FirstPlaces:
    """The first places of loaders, in one call of a Trainer."""

    def __init__(self) -> None:
        # By identity; the loaders are kept so that no other gets the number of one of them.
        self._places: dict[int, tuple[Any, Any]] = {}

    def note(self, loaders: Iterable[Any]) -> None:
        """Note where the loaders of this library stand that are new here."""
        for loader in filter(is_ours, loaders):
            if id(loader) not in self._places:
                self._places[id(loader)] = loader, loader.local_state_dict()

    def go_back(self, loaders: Iterable[Any] | None = None) -> None:
        """Bring these loaders back to their first places; None: all of them."""
        chosen = None if loaders is None else {id(loader) for loader in loaders}
        for number, (loader, place) in self._places.items():
            if place is not None and (chosen is None or number in chosen):
                loader.load_state_dict(place)
