"""What every format of files must do."""

import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fkat_data.testing.contracts.expectation import expect, expect_error, expect_same


class FormatContract:
    """Tests of a format: of a map-style dataset that reads files, or of an encoding within shards.

    Override ``write`` and ``open``; and ``samples`` for what the format is about.

    Attributes:
        notices_cuts: Whether files that end early are noticed at any place, not only within a sample.
    """

    notices_cuts: ClassVar[bool] = True

    def write(self, samples: Sequence[Any], folder: Path) -> None:
        """Write samples into files of an empty folder."""
        raise NotImplementedError

    def open(self, folder: Path) -> Any:
        """Return the dataset of a folder's files: it has a length, and a sample for each index."""
        raise NotImplementedError

    def samples(self) -> Sequence[Any]:
        """Return samples as the dataset is to give them back."""
        return [{"id": number, "text": f"Grüße {number} " * (number % 5)} for number in range(40)]

    def test_samples_come_back_as_they_were_written(self, tmp_path: Path) -> None:
        """Each sample is equal in types and bits."""
        dataset, samples = self._written(tmp_path)
        expect(len(dataset) == len(samples), f"len() is {len(dataset)}, and {len(samples)} samples were written")
        for index, sample in enumerate(samples):
            expect_same(dataset[index], sample, f"sample {index}")

    def test_any_order_gives_the_same_samples(self, tmp_path: Path) -> None:
        """A sample depends on its index alone, not on what was read before; also where many are read together."""
        dataset, samples = self._written(tmp_path)
        order = random.Random(0).choices(range(len(samples)), k=2 * len(samples))  # noqa: S311 - data, not secrets
        for index in order:
            expect_same(dataset[index], samples[index], f"sample {index}, read in random order")
        read_together: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)
        if read_together is not None:
            expect_same(list(read_together(order)), [samples[index] for index in order], "__getitems__")

    def test_an_index_out_of_range_is_an_index_error(self, tmp_path: Path) -> None:
        """Loops over a dataset end with it."""
        dataset, samples = self._written(tmp_path)
        for index in (len(samples), len(samples) + 7, -len(samples) - 1):
            expect_error(IndexError, lambda index=index: dataset[index], f"sample {index} of {len(samples)}")

    def test_a_pickled_dataset_reads_the_same(self, tmp_path: Path) -> None:
        """A dataset with open files goes to a worker process and reads there."""
        dataset, samples = self._written(tmp_path)
        dataset[0]
        copied = pickle.loads(pickle.dumps(dataset))
        expect_same([copied[index] for index in range(len(copied))], list(samples), "the copy's samples")

    def test_two_writes_give_the_same_files(self, tmp_path: Path) -> None:
        """A file's content depends on the samples alone, so that hashes can be compared."""
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            self.write(self.samples(), tmp_path / name)
        one, two = (_contents(tmp_path / name) for name in ("one", "two"))
        expect(sorted(one) == sorted(two), f"the files have other names: {sorted(one)}, {sorted(two)}")
        for name in one:
            expect(one[name] == two[name], f"{name} has another content when the same samples are written again")

    def test_a_file_that_was_cut_loses_no_sample_in_silence(self, tmp_path: Path) -> None:
        """A file that ends early is an error, unless every sample is read all the same."""
        self.write(self.samples(), tmp_path)
        for name, content in _contents(tmp_path).items():
            cuts = [len(content) // 2, len(content) - 1, 0] if self.notices_cuts else [len(content) // 2]
            for size in cuts:
                (tmp_path / name).write_bytes(content[:size])
                self._check_damaged(tmp_path, f"{name} with {size} of {len(content)} bytes")
            (tmp_path / name).write_bytes(content)

    def _check_damaged(self, folder: Path, what: str) -> None:
        try:
            dataset = self.open(folder)
            found = [dataset[index] for index in range(len(dataset))]
        except Exception:  # noqa: BLE001 - a format of a third party has errors of its own
            return
        expect_same(found, list(self.samples()), f"what is read without an error from {what}")

    def _written(self, folder: Path) -> tuple[Any, Sequence[Any]]:
        samples = self.samples()
        self.write(samples, folder)
        return self.open(folder), samples


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
