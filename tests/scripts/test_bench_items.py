import time
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.syspath_prepend(BENCH.parent)


def test_files_and_tars_hold_the_same_images(tmp_path):
    from items import Source, make_jpegs

    found = {}
    for kind, num_shards in (("files", 1), ("tar", 2)):
        make_jpegs(str(tmp_path), kind, 8 // num_shards, num_shards)
        dataset = Source(kind, str(tmp_path), 8 // num_shards, num_shards, 0.0).whole()
        # The crop depends on the number within the shard.
        found[kind] = [dataset[index] for index in range(4)]
        assert len(dataset) == 8
    torch.testing.assert_close(found["tar"], found["files"], rtol=0, atol=0)
    assert {(image.shape, image.dtype) for image in found["files"]} == {((3, 224, 224), torch.uint8)}


def test_each_20th_microbatch_is_slow(monkeypatch):
    from items import BATCH_SIZE, Source

    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    dataset = Source("slow", "", 40 * BATCH_SIZE, 2, 0.5).whole()
    for number in range(80):
        dataset[number * BATCH_SIZE]
    assert [number for number, wait_s in enumerate(waited) if wait_s == 10.0] == [19, 39, 59, 79]
    assert set(waited) == {0.5, 10.0}


def test_the_plot_shows_medians_by_kind_library_and_workers():
    from plot_scaling import rates

    trials = [
        {"kind": "tar", "contestant": "ours", "workers": workers, "per_s": per_s}
        for workers, per_s in ((2, 5.0), (1, 1.0), (1, 3.0), (1, 2.0))
    ]
    assert rates({"trials": {"scaling": trials}}) == {"tar": {"ours": {1: 2.0, 2: 5.0}}}
