"""The class that iterators of DataLoaders share with torch's: frameworks recognise them by it.

Lightning leaves the iterators of torch's class out where it pickles a ``CombinedLoader``. Nothing else of that class is
used, which is private to torch.
"""

from typing import Any, NoReturn, cast

from torch.utils.data import dataloader as torchs

__all__ = ["TorchIterator"]

_TORCHS: Any = getattr(torchs, "_BaseDataLoaderIter", object)


class TorchIterator(_TORCHS):
    """One epoch of a DataLoader. A subclass has a ``__next__`` of its own before this class, and sets ``_loader``."""

    _loader: Any

    def __len__(self) -> int:
        """Return the microbatches of a whole epoch.

        Raises:
            TypeError: That is not known.
        """
        return len(self._loader)

    def __bool__(self) -> bool:
        """Return True, even for an epoch without microbatches."""
        return True

    def __reduce__(self) -> NoReturn:
        kind = cast("type[object]", type(self._loader))
        name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        raise NotImplementedError(
            f"an iterator of a {name} cannot be pickled or copied: pickle the loader, and hand its place over "
            "by state_dict() and load_state_dict()"
        )
