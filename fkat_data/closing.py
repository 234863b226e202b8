"""What closes a loader: a ``with`` block, or the trainer that drives it."""

from typing import Any, Self


class Closing:
    """A loader that ``with`` blocks and trainers close."""

    def close(self) -> None:
        """End what runs for the loader; any number of calls."""
        raise NotImplementedError

    def teardown(self, *args: Any) -> None:
        """Close the loader; the name that some trainers call."""
        del args
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """Close the loader; the name that some trainers call."""
        del exception
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
