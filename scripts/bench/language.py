"""Measure text on its way to a language model: lines of JSON, tokens by BPE, packed sequences of 2,048, batches of 4.

The text is Python's standard library in documents of some 2 kB; the tokenizer is trained on it. All contestants have the
same documents, tokenizer and length, and each joins its documents.
"""

import json
import os
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import measure
import torch
from measure import Settings, Table, Usage, cells, medians, used_between

_CONTESTANTS = ("ours, 2 workers", "ours, 1 worker", "torch, 2 workers", "grain", "the tokenizer, one thread")
_PEERS = {"grain"}
_LENGTH, _BATCH = 2048, 4
_DOCUMENT_BYTES, _BYTES = 2000, 24_000_000
_WARM = 50  # the tokenizer keeps words that it has seen, in each process
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def prepare(folder: Path) -> None:
    sources = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    text = "".join(each.read_text(errors="replace") for each in sources if "site-packages" not in each.parts)[:_BYTES]
    documents = [text[start : start + _DOCUMENT_BYTES] for start in range(0, len(text), _DOCUMENT_BYTES)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
    tokenizer = import_module("tokenizers").ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(documents[:500], vocab_size=8000, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))


@cache
def tokenizer_of(folder: str) -> Any:
    return import_module("tokenizers").Tokenizer.from_file(f"{folder}/tokenizer.json")


class Tokenize:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, samples: list[Any]) -> list[Any]:
        tokenizer = tokenizer_of(self.folder)
        return [torch.tensor(tokenizer.encode(each["text"]).ids) for each in samples]


class Joined(torch.utils.data.IterableDataset[torch.Tensor]):
    """Each worker's own part of the lines, joined and cut: as programs write it for torch's DataLoader."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[torch.Tensor]:
        info: Any = torch.utils.data.get_worker_info()
        left = torch.empty(0, dtype=torch.long)
        with Path(f"{self.folder}/text.jsonl").open() as lines:
            for line in islice(lines, info.id, None, info.num_workers):
                left = torch.cat([left, *Tokenize(self.folder)([json.loads(line)])])
                while len(left) >= _LENGTH:
                    yield left[:_LENGTH]
                    left = left[_LENGTH:]


def batches_of(contestant: str, folder: str) -> Iterable[Any]:
    if contestant.startswith("ours"):
        datasets = import_module("fkat_data.datasets")
        return import_module("fkat_data").DataLoader(
            datasets.JsonDataset(f"{folder}/text.jsonl"),
            _BATCH,
            shuffle=True,
            num_workers=int(contestant.split()[1]),
            window_fn=[Tokenize(folder), datasets.Pack(_LENGTH, "concatenate")],
            window_size=256,
            collate_fn=datasets.collate_packed,
        )
    if contestant.startswith("torch"):
        return torch.utils.data.DataLoader(Joined(folder), _BATCH, num_workers=2)
    if contestant == "grain":
        return _of_grain(folder)
    lines = (json.loads(line) for line in (Path(folder) / "text.jsonl").read_text().splitlines())
    return (Tokenize(folder)([line])[0] for line in lines)


def _of_grain(folder: str) -> Iterable[Any]:
    """Threads over a map-style source, and packing behind them, as torchtitan builds its text data."""
    grain = import_module("grain")
    lines = (Path(folder) / "text.jsonl").read_text().splitlines()
    tokens = (
        grain.MapDataset.source(lines)
        .shuffle(seed=1)
        .map(lambda line: {"tokens": tokenizer_of(folder).encode(json.loads(line)["text"]).ids})
        .map(lambda each: {"tokens": torch.tensor(each["tokens"]).numpy()})
        .to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=64))
    )
    packed = import_module("grain.experimental").ConcatThenSplitIterDataset(tokens, length_struct={"tokens": _LENGTH})
    return packed.batch(_BATCH, drop_remainder=True)


def trial(contestant: str, folder: str, count: int) -> dict[str, Any]:
    began_s = time.perf_counter()
    is_bare = contestant.startswith("the tokenizer")
    size = 50 if is_bare else 1  # documents are smaller
    iterator = iter(batches_of(contestant, folder))
    next(iterator)
    first_s = time.perf_counter() - began_s
    measure.take(iterator, _WARM * size)
    children = measure.workers()
    before, num_tokens = Usage.now(children), 0
    for batch in islice(iterator, count * size):
        tokens = batch["tokens"] if isinstance(batch, dict) else batch
        num_tokens += tokens.size if hasattr(tokens, "size") and not callable(tokens.size) else tokens.numel()
    used = used_between(before, Usage.now(children), num_tokens)
    return {"tokens_per_s": used["per_s"], "cpu_ns": 1e3 * used["cpu_us"], "first_s": first_s}


def run(settings: Settings) -> list[Table]:
    there = [name for name in _CONTESTANTS if settings.peers or name not in _PEERS]
    wanted = set(settings.contestants)
    names = [name for name in there if not wanted or wanted & {name, name.partition(",")[0]}]
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        prepare(Path(folder))
        found = measure.of_contestants(
            settings, "language", names, peers=_PEERS, folder=folder, count=settings.count(300)
        )
    bare = found.get(_CONTESTANTS[-1])
    rows: list[list[str]] = []
    for name, done in found.items():
        rate = medians(done)("tokens_per_s")
        ratio = f"{rate / medians(bare)('tokens_per_s'):.2f}" if bare else ""
        rows.append([name, f"{rate / 1e6:.2f}", ratio, *cells(done, cpu_ns=",.0f", first_s=".2f")])
    headers = ["", "million tokens/s", "to the bare thread (aim: 1.8)", "CPU ns a token", "first batch, s"]
    return [Table("Lines of JSON, BPE, packed sequences of 2,048, 4 a batch", headers, rows)]
