"""A content's name together with the time at which it was written."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["joined_version"]


def joined_version(version: str, written: object) -> str:
    """Return one text of both, the same whatever client tells the time, by the second.

    Args:
        version: What the store calls the content.
        written: A time, as a ``datetime``, in HTTP's form, or as the store has it; None: it does not say.
    """
    if isinstance(written, str):
        try:
            written = parsedate_to_datetime(written)
        except ValueError:
            return f"{version} {written}"
    if isinstance(written, datetime):
        moment = written if written.tzinfo else written.replace(tzinfo=UTC)
        return f"{version} {moment.astimezone(UTC).isoformat(timespec='seconds')}"
    return version if written is None else f"{version} {written}"
