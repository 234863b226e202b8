"""Join the version of a content with the time at which it was written."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fkat_data.interruption import genuine


def joined_version(version: str, written: object) -> str:
    """Return one text of both, to the second, which is the same for every form of the time.

    Args:
        version: The store's name for the content.
        written: The time as a ``datetime``, in HTTP's form, or in the store's own; None: the store reports none.
    """
    if isinstance(written, str):
        try:
            written = parsedate_to_datetime(written)
        except genuine(ValueError):
            written = written.replace(" ", "_")
    if isinstance(written, datetime):
        moment = written if written.tzinfo else written.replace(tzinfo=UTC)
        return f"{version} {moment.astimezone(UTC).isoformat(timespec='seconds')}"
    return version if written is None else f"{version} {written}"


def moment_of(version: str) -> str:
    """Return the time in a version that includes the time of writing; the version itself if the store reports no time.

    Hosts of one store, and mounts of one directory, may name the same content differently; its time stays.
    """
    return version.rpartition(" ")[2]
