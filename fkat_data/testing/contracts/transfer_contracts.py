"""The contracts of stores and of movers."""

import copy
import io
import pickle
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from fkat_data.device.host import Mover, map_tensors
from fkat_data.errors import FkatDataError, ShardNotFoundError
from fkat_data.files.shard import Origin
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.streaming.store import Store, open_store
from fkat_data.streaming.writing import MDSWriter
from fkat_data.testing.contracts.expectation import expect, expect_error, expect_same

_LIMIT_BYTES = 1 << 24


class StoreContract:
    """Tests of a store: of a client that ``register_store`` knows, or of a file system of fsspec.

    Override ``put``, and the class attributes where they do not fit.

    Attributes:
        storage_options: What the URL is opened with.
        can_list: Whether the store lists directories.
        can_replace: Whether ``put`` may replace files.
    """

    storage_options: ClassVar[Mapping[str, Any] | None] = None
    can_list: ClassVar[bool] = True
    can_replace: ClassVar[bool] = True

    def put(self, files: Mapping[str, bytes], folder: Path) -> str:
        """Put files where the store reads them, replace those that are there, and return the URL of their directory.

        Args:
            files: The content of each, by its name with slashes, relative to the directory.
            folder: An empty local folder of this test, for what the store needs on this machine. A test may call
                ``put`` again with the same folder: then the URL is the same, and so are the files of other names.
        """
        raise NotImplementedError

    def files(self) -> dict[str, bytes]:
        """Return the files that most tests put: empty, small, larger than a piece, and with peculiar names."""
        return {
            "index.json": b'{"version": 2, "shards": []}',
            "empty.bin": b"",
            "train/shard.00000.mds": random.Random(1).randbytes(300_001),  # noqa: S311 - data, not secrets
            "train/shard.00001.mds": random.Random(2).randbytes(5 << 20),  # noqa: S311 - as above
            "train/with space, ümläut & 100%.bin": b"peculiar",
        }

    def test_each_file_arrives_whole(self, tmp_path: Path) -> None:
        """A file is read and downloaded byte for byte."""
        store = self._store_of_files(tmp_path)
        for name, content in self.files().items():
            expect_same(_read(store, name), content, name)
            target = io.BytesIO()
            store.download(name, target, None, None)
            expect_same(target.getvalue(), content, f"the download of {name}")
        store.close()

    def test_any_range_arrives(self, tmp_path: Path) -> None:
        """A range has its bytes and no others, at any offset, and several ranges follow one another."""
        store = self._store_of_files(tmp_path)
        name, content = "train/shard.00001.mds", self.files()["train/shard.00001.mds"]
        size = len(content)
        version = ""
        for start, stop in [(0, 1), (0, size), (1, 2), (size - 1, size), (4_000_000, 4_500_000), (7, 70_000)]:
            found, version = store.read_range(name, start, stop, size_bytes=size, version=version)
            expect_same(found, content[start:stop], f"bytes {start} to {stop} of {name}")
        target = io.BytesIO()
        store.download_part(Origin(name, size, version, ((10, 20), (5, 8), (size - 3, size))), target)
        expect_same(target.getvalue(), content[10:20] + content[5:8] + content[-3:], f"three ranges of {name}")
        store.close()

    def test_a_transfer_goes_on_where_it_stopped_or_begins_again(self, tmp_path: Path) -> None:
        """With the version of the bytes before, the client sends the rest, or all; with another version, all or none."""
        store = self._store_of_files(tmp_path)
        client, name = store.client(), "train/shard.00000.mds"
        content = self.files()[name]
        version = client.version(name, 10.0)
        body = client.open(name, 100_000, version, 10.0)
        expect(body.start in (0, 100_000), f"the answer begins at byte {body.start}, not at the one asked for or at 0")
        expect(body.size_bytes in (None, len(content)), f"size_bytes is {body.size_bytes}, not that of the whole file")
        expect(body.version == version, f"the version of the answer is {body.version!r}, that of the file {version!r}")
        received = b"".join(iter(lambda: body.read(10.0), b""))
        body.close()
        expect_same(received, content[body.start :], f"the rest of {name}")
        store.close()

    def test_a_version_names_a_content(self, tmp_path: Path) -> None:
        """A file has one version, which another content changes; "" where the store has none."""
        store = self._store_of_files(tmp_path)
        name = "train/shard.00000.mds"
        version = store.version(name)
        expect(store.version(name) == version, "the version of a file changes from look to look")
        expect(store.read(name, _LIMIT_BYTES)[1] == version, "reading a file reports another version than version()")
        if version and self.can_replace:
            self.put({name: bytes(reversed(self.files()[name]))}, tmp_path)
            replaced = store.version(name)
            expect(replaced != version, f"the version is {version!r} before and after the file was replaced")
            expect_same(_read(store, name), bytes(reversed(self.files()[name])), f"{name}, replaced")
        store.close()

    def test_a_file_that_does_not_exist_is_missing(self, tmp_path: Path) -> None:
        """It is a ``ShardNotFoundError`` at once; a directory is no file either."""
        store = self._store_of_files(tmp_path)
        expect(store.has("index.json"), "has() denies a file that exists")
        expect(not store.has("train/no.mds"), "has() reports a file that does not exist")
        expect_error(ShardNotFoundError, lambda: _read(store, "train/no.mds"), "read() of a missing file")
        expect_error(ShardNotFoundError, lambda: store.version("no/where.mds"), "version() of a missing file")
        expect_error(FkatDataError, lambda: _read(store, "train"), "read() of a directory")
        store.close()

    def test_the_listing_has_each_file_with_its_size(self, tmp_path: Path) -> None:
        """A listing has the files below a prefix at any depth, each once; without listings, the file of that name."""
        store, files = self._store_of_files(tmp_path), self.files()
        prefixes = ["", "train/", "train/shard.", "train/shard.00000.mds", "no/"]
        for prefix in prefixes if self.can_list else ["index.json", "no.json"]:
            expected = sorted((name, len(content)) for name, content in files.items() if name.startswith(prefix))
            found = [(file.name, file.size_bytes) for file in store.listing(prefix)]
            expect_same(found, expected, f"the listing of {prefix!r}")
        store.close()

    def test_threads_share_a_store(self, tmp_path: Path) -> None:
        """Eight threads read at the same time, each its own file."""
        store, files = self._store_of_files(tmp_path), self.files()
        names = [*files] * 8
        with ThreadPoolExecutor(8) as threads:
            for name, found in zip(names, threads.map(partial(_read, store), names), strict=True):
                expect_same(found, files[name], name)
        store.close()

    def test_a_pickled_store_reads_the_same(self, tmp_path: Path) -> None:
        """A store that has connections pickles, and its copy opens its own."""
        store, files = self._store_of_files(tmp_path), self.files()
        _read(store, "index.json")
        copied: Store = pickle.loads(pickle.dumps(store))
        store.close()
        expect_same(_read(copied, "train/shard.00000.mds"), files["train/shard.00000.mds"], "the copy's file")
        copied.close()

    def test_a_dataset_is_read_through_a_cache(self, tmp_path: Path) -> None:
        """A ``StreamingDataset`` of the URL has the samples that were written, twice: from the store and the cache."""
        written = [{"id": number, "text": f"sample {number}" * (number % 7)} for number in range(60)]
        source, folder = tmp_path / "source", tmp_path / "folder"
        folder.mkdir()
        with MDSWriter(out=str(source), columns={"id": "int", "text": "str"}, size_limit=1 << 10) as writer:
            for sample in written:
                writer.write(sample)
        files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*.*")}
        url = self.put(files, folder)
        options = None if self.storage_options is None else dict(self.storage_options)
        for turn in ("first", "second"):
            dataset = StreamingDataset(
                remote=url, local=str(tmp_path / "cache"), batch_size=1, shuffle=False, storage_options=options
            )
            expect_same(list(dataset), written, f"the samples of the {turn} epoch")

    def _store_of_files(self, folder: Path) -> Store:
        url = self.put(self.files(), folder)
        return open_store(url, storage_options=self.storage_options, num_retries=2, timeout_s=20.0)


def _read(store: Store, name: str) -> bytes:
    return store.read(name, _LIMIT_BYTES)[0]


class _Pair(NamedTuple):
    left: Any
    right: Any


class MoverContract:
    """Tests of a mover that ``register_mover`` knows. Override ``make``; and ``settle`` where torch cannot wait for it.

    Attributes:
        device: Where tensors are after the move.
    """

    device: torch.device = torch.device("cpu")

    def make(self) -> Mover:
        """Return a new mover to ``device``."""
        raise NotImplementedError

    def settle(self, mover: Mover) -> None:
        """Wait until every copy that a mover has handed over is complete."""
        module: Any = getattr(torch, self.device.type, None)
        if self.device.type != "cpu" and hasattr(module, "synchronize"):
            module.synchronize()

    def test_values_dtypes_and_shapes_arrive(self) -> None:
        """Tensors of any dtype, size and stride have their bits on the device."""
        tensors = {
            "zero-dimensional": torch.tensor(3),
            "empty": torch.empty(0, 5),
            "bool": torch.tensor([True, False]),
            "bfloat16": torch.arange(7).to(torch.bfloat16),
            "int64": torch.arange(12).reshape(3, 4),
            "transposed": torch.arange(12.0).reshape(3, 4).t(),
            "with gaps": torch.arange(20)[::3],
            "large": torch.arange(300_000, dtype=torch.int32),
        }
        self._check(tensors)

    def test_containers_stay_and_so_does_what_is_no_tensor(self) -> None:
        """Tensors are found in dicts, lists, tuples and named tuples; text and numbers pass."""
        self._check(
            {
                "list": [torch.ones(2), "text", None, 3.5],
                "pair": _Pair(torch.zeros(3), {"deep": (torch.arange(2), True)}),
            }
        )
        self._check([])
        self._check("no tensor at all")

    def test_the_source_is_not_changed_and_may_be_used_again_after_wait(self) -> None:
        """``wait`` returns when nothing reads the source any more: writing to it then changes no copy."""
        mover = self.make()
        source = {"x": torch.arange(100_000)}
        kept = copy.deepcopy(source)
        moved = mover.finish(mover.begin(source))
        mover.wait()
        expect_same(source, kept, "the source after the move")
        if mover.copies:
            source["x"].fill_(-1)
        self._expect_arrived(mover, moved, kept)

    def test_several_microbatches_are_under_way_at_once(self) -> None:
        """The loader begins moves ahead, and finishes them in order."""
        mover = self.make()
        sources = [{"x": torch.full((10_000,), number)} for number in range(12)]
        moving = [mover.begin(source) for source in sources]
        for source, one in zip(sources, moving, strict=True):
            self._expect_arrived(mover, mover.finish(one), source)
        mover.wait()

    def test_a_mover_says_whether_it_copies_and_for_how_long(self) -> None:
        """``copies`` decides whether the loader asks it at all; ``copied_s`` does not fall."""
        mover = self.make()
        mover.wait()
        before = mover.copied_s
        expect(before >= 0, f"copied_s is {before} before the first copy")
        source = {"x": torch.arange(1000)}
        moved = mover.finish(mover.begin(source))
        if not mover.copies:
            expect(moved is source, "copies is False, and finish(begin(x)) is another object than x")
        mover.wait()
        expect(mover.copied_s >= before, f"copied_s fell from {before} to {mover.copied_s}")

    def _check(self, microbatch: Any) -> None:
        mover = self.make()
        kept = copy.deepcopy(microbatch)
        moved = mover.finish(mover.begin(microbatch))
        self._expect_arrived(mover, moved, kept)
        mover.wait()

    def _expect_arrived(self, mover: Mover, moved: Any, expected: Any) -> None:
        self.settle(mover)
        elsewhere: list[torch.device] = []

        def landed(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != self.device.type:
                elsewhere.append(tensor.device)
            return tensor.cpu()

        on_host = map_tensors(landed, moved)
        expect(not elsewhere, f"a tensor is on {elsewhere[:1]}, not on {self.device}")
        expect_same(on_host, expected, "the moved microbatch")
