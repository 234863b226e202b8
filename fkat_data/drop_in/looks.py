"""A look at a microbatch, and what it costs: an iteration is an epoch."""

import logging

__all__ = ["warn_of_look"]

_logger = logging.getLogger(__name__)


def warn_of_look(epoch: int) -> None:
    """Say that an epoch, where a state was loaded, is left after its first microbatch."""
    _logger.warning(
        "the rest of epoch %d, where a state was loaded, is left after one microbatch, and the next epoch begins. If that "
        "was a look at a microbatch, take it before load_state_dict(), or call take_back() after it",
        epoch,
    )
