"""Items as datasets make them: they wait, are JPEGs to decode, crop and resize, or windows of a file of tokens.

JPEGs come from files or a tar. Images are uint8, or, of the kind ``normalized``, float32 as most models of
images want them.

A separate module, so that spawned workers and the peers' environment can import it without the benchmarks.
"""

import functools
import importlib
import io
import os
import tarfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from format_contestants import add_member
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset

BATCH_SIZE = 32
#: Tokens in a window.
CONTEXT = 2048
#: Images in a tar or a directory of MDS shards.
SHARD_SIZE = 512
_SIZE, _CROP = (500, 375), 224
_MEANS, _DEVIATIONS = (torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
#: Every 20th microbatch of a shard of the kind ``slow`` takes 20 times as long.
_SLOW = 20


class Source(NamedTuple):
    """Where items come from.

    Attributes:
        kind: ``waiting``, ``far``, ``ready``, ``slow``, ``files``, ``normalized`` (files as well), ``tar`` or ``windows``.
        folder: Where the images, or the tokens, are.
        shard_size: The items of a shard.
        num_shards: The number of shards; images begin again where they end.
        wait_s: How long each item waits.
    """

    kind: str
    folder: str
    shard_size: int
    num_shards: int
    wait_s: float

    def shard(self, number: int) -> Dataset[Any]:
        if self.kind in {"waiting", "slow", "far", "ready"}:
            return _Waiting(self)
        if self.kind == "windows":
            return _Windows(self.folder)
        return _Tar(self.folder, number) if self.kind == "tar" else _Files(self.folder, self.kind == "normalized")

    def __call__(self, number: str) -> DataLoader[Any]:
        """Return a torch DataLoader over a shard: the factory for ShardedDataLoader."""
        return DataLoader(self.shard(int(number)), batch_size=BATCH_SIZE)

    def whole(self) -> Dataset[Any]:
        """Return all shards in a row."""
        return ConcatDataset([self.shard(number) for number in range(self.num_shards)])


def make_jpegs(folder: str, kind: str, shard_size: int, num_shards: int) -> None:
    """Write images, the same 512 again and again: as files, or in shards, each a tar or a directory of MDS shards."""
    images = ((f"{number:05d}.jpg", _jpeg(number % SHARD_SIZE)) for number in range(shard_size * num_shards))
    if kind == "files":
        for name, data in images:
            Path(folder, name).write_bytes(data)
        return
    for shard in range(num_shards):
        path = Path(folder, f"{kind}-{shard}")
        some = (next(images) for _ in range(shard_size))
        if kind == "tar":
            with tarfile.open(path, "w") as tar:
                for name, data in some:
                    add_member(tar, name, data)
            continue
        # The peers' environment does not have it.
        with importlib.import_module("fkat_data.streaming").MDSWriter(out=str(path), columns={"jpeg": "bytes"}) as mds:
            for _, data in some:
                mds.write({"jpeg": data})


def make_tokens(folder: str, num_windows: int) -> None:
    """Write a file of tokens, uint16, for ``num_windows`` windows."""
    tokens = np.random.default_rng(0).integers(0, 50_000, (num_windows + 1) * CONTEXT, np.uint16)
    tokens.tofile(Path(folder, "tokens"))


class _Waiting(Dataset[torch.Tensor]):
    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.shard_size

    def __getitem__(self, index: int) -> torch.Tensor:
        is_slow = self._source.kind == "slow" and (1 + index // BATCH_SIZE) % _SLOW == 0
        if self._source.wait_s:
            time.sleep(self._source.wait_s * (_SLOW if is_slow else 1))
        return torch.full((2048,), index)


class _Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Inputs and targets of a language model: windows of a file of tokens, which is mapped where it is read."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, "tokens")
        self._tokens: np.memmap[Any, Any] | None = None

    def __len__(self) -> int:
        return self._path.stat().st_size // (2 * CONTEXT) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None}

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._tokens is None:
            self._tokens = np.memmap(self._path, np.uint16, "r")
        window = torch.from_numpy(self._tokens[CONTEXT * index : CONTEXT * (index + 1) + 1].astype(np.int64))
        return window[:-1], window[1:]


def cropped(jpeg: bytes, index: int, *, is_normalized: bool) -> torch.Tensor:
    """Decode an image, and return a crop of it."""
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    # A crop of 72 to 88 % of each side, by arithmetic: the same for all contestants.
    width, height = (side * (72 + index % 17) // 100 for side in image.size)
    left, top = (index * 31 % (image.size[0] - width), index * 17 % (image.size[1] - height))
    box = (left, top, left + width, top + height)
    pixels = np.array(image.resize((_CROP, _CROP), Image.Resampling.BILINEAR, box=box))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    return tensor.float().div_(255).sub_(_MEANS).div_(_DEVIATIONS) if is_normalized else tensor


class _Files(Dataset[torch.Tensor]):
    def __init__(self, folder: str, is_normalized: bool) -> None:
        self._paths = sorted(str(path) for path in Path(folder).glob("*.jpg"))
        self._is_normalized = is_normalized

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return cropped(Path(self._paths[index]).read_bytes(), index, is_normalized=self._is_normalized)


class _Tar(Dataset[torch.Tensor]):
    """The members of a tar, by number; the file is opened where it is read."""

    def __init__(self, folder: str, number: int) -> None:
        self._path = str(Path(folder, f"tar-{number % len(list(Path(folder).glob('tar-*')))}"))
        with tarfile.open(self._path) as tar:
            self._members = [(member.offset_data, member.size) for member in tar]
        self._descriptor: int | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": None}

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        offset, size = self._members[index]
        return cropped(os.pread(self._descriptor, size, offset), index, is_normalized=False)


@functools.cache
def _jpeg(number: int) -> bytes:
    """Return an image of soft shapes and some grain, which take about as long to decode as a photograph."""
    random = np.random.default_rng(number)
    shapes, grain = (
        Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).resize(_SIZE, Image.Resampling.BICUBIC)
        for size in ((12, 16), (188, 250))
    )
    data = io.BytesIO()
    Image.blend(shapes, grain, 0.2).save(data, "JPEG", quality=90)
    return data.getvalue()
