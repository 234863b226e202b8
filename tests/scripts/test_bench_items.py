from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.syspath_prepend(BENCH.parent)


def test_files_tars_and_mds_shards_hold_the_same_images(tmp_path):
    from items import Source, make_jpegs

    found = {}
    for kind, num_shards in (("files", 1), ("tar", 2), ("mds", 2)):
        make_jpegs(str(tmp_path), kind, 8 // num_shards, num_shards)
        dataset = Source(kind, str(tmp_path), 8 // num_shards, num_shards, 0.0).whole()
        # The crop depends on the number within the shard.
        found[kind] = [dataset[index] for index in range(4)]
        assert len(dataset) == 8
    for kind in ("tar", "mds"):
        torch.testing.assert_close(found[kind], found["files"], rtol=0, atol=0)
    assert {(image.shape, image.dtype) for image in found["files"]} == {((3, 224, 224), torch.uint8)}
