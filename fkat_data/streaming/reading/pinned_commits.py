"""The commits of a hub at which streams are read, and the checks that ranks and resumed runs read the same data."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from fkat_data.errors import RankMismatchError, StateMismatchError
from fkat_data.errors.acceptance import Acceptance
from fkat_data.runtime.distributed import first_value, rank_and_world_size
from fkat_data.runtime.interruption import genuine

_FIELD = "commits"
_REMEDY = (
    "the revision moved while they opened it; write the commit in the URL, or open the dataset after "
    "torch.distributed is initialised"
)


class PinnedCommit(NamedTuple):
    """The commit of a repository at which a stream is read.

    Attributes:
        location: The URL of the stream.
        revision: The repository, and the branch, tag or commit that the user named.
        commit: The commit of the revision.
        content: A digest of the data at that commit. Commits that change other files have the same.
    """

    location: str
    revision: str
    commit: str
    content: str


def check_ranks(commits: Sequence[PinnedCommit | None]) -> None:
    """Check that the ranks of this job read the same data. No rank waits; without torch.distributed nothing is compared.

    Args:
        commits: Each stream's; None for a stream of another store.

    Raises:
        RankMismatchError: Another rank reads other data. The message names it, and the commits of both.
    """
    for own in filter(None, commits):
        # A rank that opens the revision from now on reads this commit.
        first_value(own.revision, own.commit)
        first = first_value(f"{own.location} of {own.revision}", f"{own.content}\n{own.commit}")
        if first is None:
            return
        content, _, commit = first.value.partition("\n")
        if content != own.content:
            raise RankMismatchError(
                f"the data of {own.location}",
                f"commit {commit} on rank {first.rank}, commit {own.commit} on rank {rank_and_world_size()[0]}; {_REMEDY}",
            )


def saved_commits(commits: Sequence[PinnedCommit | None]) -> tuple[dict[str, str] | None, ...]:
    """Return the commits as plain values for a state; empty if no stream has one."""
    if not any(commits):
        return ()
    return tuple(None if own is None else {"commit": own.commit, "content": own.content} for own in commits)


def check_merged(states: Sequence[Mapping[str, Any]]) -> None:
    """Check that the states of a job's ranks are of the same data.

    Args:
        states: Each rank's, in order of rank.

    Raises:
        RankMismatchError: A rank reads other data than rank 0. The message names it, and the commits of both.
    """
    first = states[0].get(_FIELD) or ()
    for rank, state in enumerate(states):
        for number, (theirs, own) in enumerate(zip(first, state.get(_FIELD) or (), strict=False)):
            if theirs is not None and own is not None and theirs["content"] != own["content"]:
                raise RankMismatchError(
                    f"the data of stream {number}",
                    f"commit {theirs['commit']} on rank 0, commit {own['commit']} on rank {rank}; {_REMEDY}",
                )


def check_saved(
    commits: Sequence[PinnedCommit | None], state: Mapping[str, Any], acceptance: Acceptance | None, price: str = ""
) -> None:
    """Check that a state was saved over the same data, where both sides know what they read.

    Args:
        commits: Each stream's.
        state: The state of a dataset.
        acceptance: What may differ; None: nothing can be accepted.
        price: What other data cost, in words.

    Raises:
        StateMismatchError: The data of a stream differ, and are not accepted.
    """
    found: object = state.get(_FIELD) or ()
    saved: list[Any] = [*cast("Sequence[Any]", found)] if isinstance(found, (list, tuple)) else [found]
    if saved and len(saved) != len(commits):
        raise StateMismatchError(_FIELD, state[_FIELD], f"<one for each of {len(commits)} streams>")
    for number, (then, own) in enumerate(zip(saved, commits, strict=False)):
        if then is None or own is None:
            continue
        try:
            commit, content = str(then["commit"]), str(then["content"])
        except genuine(TypeError, KeyError):
            raise StateMismatchError(f"{_FIELD}[{number}]", then, "<a mapping with commit and content>") from None
        if content != own.content:
            hint = f"the data of {own.location} were replaced since; write @{commit} in its URL to read the saved ones"
            error = StateMismatchError(f"{_FIELD}[{number}]", commit, own.commit, hint)
            if acceptance is None:
                raise error
            acceptance.settle(error, price)
