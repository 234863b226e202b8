"""What a case of the kept states is: how a loader is made, where its state is taken, and what follows it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from fkat_data.streaming import StreamingDataLoader

GOLDEN = Path(__file__).parents[1] / "golden" / "states" / "version_2"

#: Of a state: one that is gathered from all ranks, each rank's own, or the first one's for all.
Form = Literal["gathered", "own", "first"]
#: Where a state is taken: microbatches that each rank has been delivered, over all epochs; in rounds if the number of
#: ranks changes.
Cut = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Case:
    """A loader, and the places at which its state is taken.

    Attributes:
        make: Makes the loader of a rank: called with the rank, the number of ranks, and a folder for its data.
        num_ranks: Ranks that save: several numbers if the number changed within the run.
        loads_on: Ranks that load; None: as many as saved last.
        form: How the states of several ranks are saved.
        cuts: Where states are taken, by names; None: where they are for most cases.
        shift: By how many microbatches each rank is ahead of the one before it.
        rest_limit: The most microbatches that are compared after a load, of an epoch that does not end.
        saver: Makes the loader that saves, if it is another one than the one that loads.
        has_processes: Whether worker processes make what follows a load.
        is_run_compared: Whether what follows a load is what the run that saved went on with; it is not, where the number
            of ranks changes.
        change: Makes another form of a saved state of it.
        in_group: Whether a state is loaded where torch.distributed knows the rank.
    """

    make: Callable[[int, int, Path], Any]
    num_ranks: int | Sequence[int] = 1
    loads_on: int | None = None
    form: Form = "gathered"
    cuts: Mapping[str, Cut] | None = None
    shift: int = 0
    rest_limit: int | None = None
    saver: Callable[[int, int, Path], Any] | None = None
    has_processes: bool = False
    is_run_compared: bool = True
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    in_group: bool = False

    @property
    def rounds(self) -> Sequence[int]:
        """The number of ranks in each round of the run that saves."""
        return (self.num_ranks,) if isinstance(self.num_ranks, int) else self.num_ranks

    @property
    def num_loading(self) -> int:
        """The number of ranks that load."""
        return self.rounds[-1] if self.loads_on is None else self.loads_on


def text_of(microbatch: Any) -> str:
    """Return a microbatch as a text: each sample's number, and its draw in hexadecimal digits."""
    if isinstance(microbatch, tuple):
        name, inner = microbatch
        return f"{name}: {text_of(inner)}"
    if isinstance(microbatch, Mapping):
        return _text_of_fields(microbatch)
    if microbatch.dim() == 1:
        microbatch = microbatch[None]
    return " ".join(f"{number}.{draw:03x}" for number, draw in microbatch.tolist())


def _text_of_fields(fields: Mapping[str, Any]) -> str:
    if "number" in fields:
        draws = fields["draw"].tolist() if "draw" in fields else [None] * len(fields["number"])
        numbers = zip(fields["number"].tolist(), draws, strict=True)
        text = " ".join(f"{number}" if draw is None else f"{number}.{draw:03x}" for number, draw in numbers)
    elif "x" in fields:
        text = text_of(fields["x"])
    else:
        text = ",".join(str(value) for value in fields["tokens"].flatten().tolist())
    name = fields.get("dataset", "")
    return f"{name if isinstance(name, str) else name[0]}: {text}" if name else text


def place_of(loader: Any) -> list[int]:
    """Return a loader's place, as it says it: the epoch, and microbatches in it; of a stream, samples of all ranks."""
    if isinstance(loader, StreamingDataLoader):
        state = loader.state_dict()
        return [state["epoch"], state["sample_in_epoch"]]
    return [loader.epoch, loader.step]


def following(loader: Any, limit: int | None = None) -> dict[str, Any]:
    """Return what a loader says of its place and yields: in the rest of its epoch, and in the next one."""
    found: dict[str, Any] = {"place": place_of(loader)}
    for name in ("rest", "next"):
        found[name] = [text_of(microbatch) for microbatch in islice(loader, limit)]
        found[f"place behind {name}"] = place_of(loader)
        if limit is not None:
            break
    return found


@contextmanager
def in_group(rank: int, num_ranks: int):
    """Let torch.distributed know a rank of as many, without any other process."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def loaded(case: Case, rank: int, states: Sequence[Any], folder: Path) -> Any:
    """Return a fresh loader of a rank that has loaded its state."""
    loader = case.make(rank, case.num_loading, folder)
    state = states[0] if len(states) == 1 else states[rank]
    if case.in_group:
        with in_group(rank, case.num_loading):
            loader.load_state_dict(state)
    else:
        loader.load_state_dict(state)
    return loader


def closed(loader: Any) -> None:
    """End a loader's workers, where it has some."""
    close = getattr(loader, "close", None)
    if close is not None:
        close()


# ---------------------------------------------------------------------------------------------------------------------
# The run that saves


def standard_cuts(epochs: Sequence[Sequence[Sequence[str]]], shift: int) -> dict[str, Cut]:
    """Return where states of most cases are taken, given each rank's epochs."""

    def at(numbers: Callable[[list[int]], int]) -> Cut:
        return [[numbers([len(epoch) for epoch in of_rank]) + rank * shift for rank, of_rank in enumerate(epochs)]]

    return {
        "begin": at(lambda _: 0),
        "middle": at(lambda sizes: sizes[0] // 2),
        "end": [[len(of_rank[0]) for of_rank in epochs]],
        "second epoch": at(lambda sizes: sizes[0] + 1),
        "fourth epoch": at(lambda sizes: sum(sizes[:3]) + math.ceil(sizes[3] / 2)),
    }


def record(case: Case, folder: Path) -> dict[str, dict[str, Any]]:
    """Return each cut's states, and what follows each; check that it is what the run itself went on with.

    Raises:
        AssertionError: A fresh loader does not go on as the run did.
    """
    torch.manual_seed(17)
    runs = [_epochs(case, rank, folder) for rank in range(case.rounds[0])] if case.rest_limit is None else []
    cuts = standard_cuts(runs, case.shift) if case.cuts is None else case.cuts
    found: dict[str, dict[str, Any]] = {}
    for name, cut in cuts.items():
        torch.manual_seed(17)
        states, run = _saved(case, cut, folder)
        torch.manual_seed(99)
        states = [state if case.change is None else case.change(state) for state in states]
        ranks: list[dict[str, Any]] = []
        for rank in range(case.num_loading):
            loader = loaded(case, rank, states, folder)
            ranks.append(following(loader, case.rest_limit))
            closed(loader)
        if case.is_run_compared and len(case.rounds) == 1 and case.num_loading == case.rounds[0]:
            for rank, (after, went_on) in enumerate(zip(ranks, run, strict=True)):
                both = after["rest"] + after.get("next", [])
                # A state behind an epoch's last microbatch may have the next epoch as its rest.
                assert both == went_on[: len(both)], (name, rank, both, went_on)
        found[name] = {"states": states, "ranks": ranks}
    return found


def _epochs(case: Case, rank: int, folder: Path) -> list[list[str]]:
    loader = (case.saver or case.make)(rank, case.rounds[0], folder)
    found = [[text_of(microbatch) for microbatch in loader] for _ in range(4)]
    closed(loader)
    return found


def _saved(case: Case, cut: Cut, folder: Path) -> tuple[list[Any], list[list[str]]]:
    """Return the states at a cut, and what each rank's run of the last round goes on with."""
    states: list[Any] = []
    gathered: list[Any] = []
    run: list[list[str]] = []
    for num_ranks, counts in zip(case.rounds, cut, strict=True):
        loaders = [(case.saver or case.make)(rank, num_ranks, folder) for rank in range(num_ranks)]
        for loader in loaders if states else ():
            loader.load_state_dict(loader.merge_state_dicts(states))
        flows = [_without_end(loader) for loader in loaders]
        for flow, count in zip(flows, counts, strict=True):
            for _ in range(count):
                next(flow)
        states = [loader.local_state_dict() for loader in loaders]
        first = loaders[0]
        gathered = [first.state_dict() if num_ranks == 1 else first.merge_state_dicts(states)]
        if case.is_run_compared:
            run = [[text_of(microbatch) for microbatch in islice(flow, 300)] for flow in flows]
        for loader in loaders:
            closed(loader)
    return {"gathered": gathered, "own": states, "first": states[:1]}[case.form], run


def _without_end(loader: Any):
    while True:
        yield from loader


# ---------------------------------------------------------------------------------------------------------------------
# Files


def write(path: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a case's states and what follows them; states that JSON cannot hold go to a file of torch's.

    Raises:
        FileExistsError: There is such a file: a kept state never changes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    states = {name: cut["states"] for name, cut in found.items()}
    is_plain = _is_plain(states)
    content = {
        name: ({"states": cut["states"]} if is_plain else {}) | {"ranks": cut["ranks"]} for name, cut in found.items()
    }
    with path.open("x") as file:
        file.write(_lines(content))
    if not is_plain:
        with path.with_suffix(".pt").open("xb") as file:
            torch.save(states, file)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return each cut's states, and what follows each on each rank."""
    content = json.loads(path.read_text())
    own = path.with_suffix(".pt")
    if own.exists():
        for name, states in torch.load(own, weights_only=True).items():
            content[name]["states"] = states
    return content


def _is_plain(value: object) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except TypeError:
        return False


def _lines(content: Mapping[str, Mapping[str, Any]]) -> str:
    """Return JSON with a line for each state, and one for what follows it on a rank."""
    cuts: list[str] = []
    for name, cut in content.items():
        fields = [
            f"    {json.dumps(field)}: [\n" + ",\n".join(f"      {json.dumps(item)}" for item in items) + "\n    ]"
            for field, items in cut.items()
        ]
        cuts.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(fields) + "\n  }")
    return "{\n" + ",\n".join(cuts) + "\n}\n"
