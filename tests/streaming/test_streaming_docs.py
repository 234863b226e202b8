"""The examples of the documentation run."""

import re
from pathlib import Path

import pytest
from tar_examples import archive

DOCS = Path(__file__).parents[2] / "docs" / "streaming"


def examples(name):
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)


@pytest.fixture
def run_here(run_script, tmp_path):
    def run(text):
        return run_script(f"import os\nos.chdir({str(tmp_path)!r})\n{text}").stdout

    return run


def test_a_dataset_is_written_and_read(run_here):
    write, *_ = examples("writing.md")
    (read,) = examples("formats.md")
    assert run_here(write) == ""
    assert (
        run_here(read.replace("    shard.column_arrays", "    print(shard.num_samples); shard.column_arrays"))
        == "100\n"
    )


def test_parquet_and_tar_are_read_as_they_are(run_here, tmp_path):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    read, read_tar = examples("files.md")
    (tmp_path / "data" / "a").mkdir(parents=True)
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(40 * 1024, np.uint16)), 1024)
    pq.write_table(
        pa.table({"tokens": tokens, "label": np.arange(40), "text": ["a"] * 40}), tmp_path / "data/a/0.parquet"
    )
    read = read.replace('batch["tokens"]', 'print(sorted(batch), list(batch["tokens"].shape))')
    setup = f"os.environ['XDG_CACHE_HOME'] = {str(tmp_path)!r}\n"
    assert run_here(setup + read).startswith("['label', 'tokens'] [32, 1024]\n")
    (tmp_path / "shards").mkdir()
    members = [(f"{number:03}.{kind}", b"%d" % number) for number in range(40) for kind in ("jpg", "cls")]
    (tmp_path / "shards" / "0.tar").write_bytes(archive(members))
    read_tar = read_tar.replace('batch["cls"]', 'print(sorted(batch), list(batch["cls"].shape), batch["jpg"][0][:0])')
    imports = "from fkat_data.streaming import StreamingDataLoader, StreamingDataset\n"
    assert run_here(setup + imports + read_tar).startswith("['cls', 'jpg'] [32] b''\n")


def test_datasets_are_written_in_parallel_and_merged(run_here, tmp_path):
    _, parallel, _ray, count, merge = examples("writing.md")
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("one\ntwo\n")
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "index.json").write_text('{"shards": [], "version": 2}')
    run_here(parallel)
    assert run_here(count + "print(lengths.tolist())") == "[1, 1, 1, 1]\n"
    run_here(merge.replace("s3://bucket/train", str(tmp_path / "data")))
    assert (tmp_path / "data" / "index.json").exists()


def test_a_dataset_is_streamed_mixed_audited_and_resumed(run_here, tmp_path):
    first, remote, mixed, sharded, transformed = examples("index.md")
    _, skipping, weights, audits = examples("state.md")
    more = "MDSWriter(out='more', columns={'number': 'int', 'text': 'str'})"
    write_more = (
        f"with {more} as writer:\n    for n in range(200):\n        writer.write({{'number': n, 'text': ''}})\n"
    )
    setup = first.splitlines()[0] + "\n"
    assert len(run_here(first).split(",")) == 32
    local = remote.replace("s3://bucket/dataset", "data").replace("/scratch/dataset", "copy")
    kept = "dataset = open_dataset()\nprint(len(dataset[:]), dataset.cache_usage > 0)"
    local = re.sub(r".*(storage_options|validate_hash).*\n", "", local)
    assert run_here(local + kept) == "1000 True\n"
    run_here(setup + write_more + mixed)
    printed = run_here(setup + skipping + audits)
    assert len(printed.splitlines()) == 32 + 1
    assert printed.splitlines()[-1] == "True"
    run_here(setup + weights)
    assert run_here(sharded + "print(state['epoch'])") == "1\n"
    assert run_here(transformed + "print(len(batch['noisy']))") == "32\n"


def test_a_cache_is_filled_and_adopted(run_here, tmp_path):
    use, adopt = examples("cache.md")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard.00000.mds").write_bytes(b"a shard")
    (tmp_path / "cache").mkdir()
    printed = run_here(use + "print(path.read_bytes())\n" + adopt + "print(version.recorded)")
    assert printed == "b'a shard'\nversion 2\n"


def test_a_run_is_simulated(run_here):
    write = examples("index.md")[0].split("\ndataset = ")[0]
    (simulate,) = examples("simulate.md")
    printed = run_here(f"{write}\n{simulate}").splitlines()
    assert len(printed) >= 2
    assert "data keep up" in printed[1]
