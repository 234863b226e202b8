"""Files of a state and files of now."""

import random

import pytest

from fkat_data.worker.fingerprints import has_appended, numbers_of_files


class Files:
    """A dataset of files with given digests."""

    def __init__(self, digests):
        self.digests = digests
        self.paths = [f"{number}.jsonl" for number in range(len(digests))]

    def file_digests(self):
        return self.digests


#: Around the numbers of files from which on more of them share a number.
COUNTS = [1, 2, 100, 255, 256, 257, 258, 300, 511, 512, 513, 768, 769, 1000, 1024, 1025, 1500]


@pytest.mark.parametrize("before", COUNTS)
def test_files_that_were_appended_are_told_apart_from_others(before):
    draw = random.Random(before)
    digests = [draw.getrandbits(32) for _ in range(max(COUNTS) + 300)]
    saved = numbers_of_files(Files(digests[:before]))
    for now in [*COUNTS, before + 1, before + 255, before + 256]:
        assert has_appended(saved, Files(digests[:now])) == (now > before)
    for changed in {0, before // 2, before - 1}:
        others = [*digests[:changed], digests[changed] + 1, *digests[changed + 1 :]]
        assert not has_appended(saved, Files(others))


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_million_files_are_compared_in_seconds():
    draw = random.Random(1)
    digests = [draw.getrandbits(32) for _ in range(1_000_000)]
    saved = numbers_of_files(Files(digests[:999_000]))
    assert has_appended(saved, Files(digests))
    assert not has_appended((*saved[:-1], 1), Files(digests))
    assert not has_appended(None, Files(digests))
