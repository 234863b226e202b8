"""Files of tokens as streams: the windows of TokenWindows, in every order, from everywhere, in any world."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from file_streams import OPTIONS
from parquet_examples import write_parquet
from token_writers import bare, datatrove, llm_c, megatron, numpys

from fkat_data import ConfigurationError, DataLoader, ShardCorruptError, ShardNotFoundError, StateMismatchError
from fkat_data.datasets import TokenWindows, collate_packed
from fkat_data.streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.usefixtures("own_caches")
SIZES = 700, 90, 16, 401
END = 7


def write(folder, writer):
    folder.mkdir()
    for number, size in enumerate(SIZES):
        tokens = np.random.default_rng(number).integers(0, 60, size).astype("uint16")
        yield str(writer(folder / f"{number}", tokens, [size // 3, size - size // 3]))


def equal(found, expected):
    found, expected = ({"tokens": each} if torch.is_tensor(each) else each for each in (found, expected))
    return found.keys() == expected.keys() and all(
        torch.as_tensor(found[name]).equal(torch.as_tensor(expected[name])) for name in expected
    )


@pytest.mark.parametrize("writer", [bare, numpys, llm_c, datatrove, megatron])
@pytest.mark.parametrize("way", ["in place", "cached", "a bucket"])
def test_a_stream_has_the_windows_of_token_windows(tmp_path, bucket, writer, way):
    dtype = {"dtype": "uint16"} if writer is bare else {}
    paths = list(write(tmp_path / "tokens", writer))
    tokens = {"window_size": 17, "stride": 16, "end_of_document": END, "vocab_size": 60, **dtype}
    options = {"window_size": 17, "stride": 16, "boundaries": True, "end_of_document": END, **dtype}
    expected = TokenWindows(paths, **options)
    folder = tmp_path / "tokens"
    if way == "in place":
        pattern = str(folder / f"*{Path(paths[0]).suffix}")  # without the indices
        stream = StreamingDataset(local=pattern, tokens=tokens, **OPTIONS)
    elif way == "cached":
        stream = StreamingDataset(remote=str(folder), local=str(tmp_path / "cache"), tokens=tokens, **OPTIONS)
    else:
        bucket.fill(folder)
        stream = bucket.stream(tmp_path / "cache", tokens=tokens)
    assert stream.size == len(expected)
    assert all(equal(stream[index], expected[index]) for index in range(len(expected)))
    local = LocalDataset(folder, tokens=tokens, arrays="torch")
    assert all(equal(local[index], expected[index]) for index in range(len(expected)))


def test_a_file_is_read_in_parts_and_a_cache_holds_those_that_were_read(tmp_path):
    stride = 1 << 22
    (tmp_path / "tokens").mkdir()
    stored = np.lib.format.open_memmap(tmp_path / "tokens" / "a.npy", "w+", np.int64, (2 * stride + 100,))
    for number in range(3):
        stored[number * stride : number * stride + 100] = np.arange(100) + 1000 * number
    del stored
    tokens = {"window_size": 100, "stride": stride}
    for options in ({"local": tmp_path / "tokens"}, {"remote": tmp_path / "tokens", "local": tmp_path / "cache"}):
        stream = StreamingDataset(tokens=tokens, **{key: str(value) for key, value in options.items()}, **OPTIONS)
        assert stream[1]["tokens"].tolist() == [*range(1000, 1100)]
        assert stream[2]["tokens"].tolist() == [*range(2000, 2100)]
    parts = sorted(path.stat().st_size for path in (tmp_path / "cache").rglob("*.parts/*") if path.is_file())
    assert parts == [800, 800]


def test_every_loader_delivers_each_window_once_and_resumes_exactly(processes, tmp_path):
    paths = list(write(tmp_path / "tokens", numpys))
    expected = sorted(window.tolist() for window in TokenWindows(paths, 10))
    options = {"local": str(tmp_path / "tokens"), "tokens": {"window_size": 10}, "shuffle": True, "batch_size": 4}
    with StreamingDataLoader(StreamingDataset(**options), batch_size=4, num_workers=2) as loader:
        batches = [batch["tokens"] for batch in loader]
    assert sorted(torch.cat(batches).tolist()) == expected
    assert batches[0].dtype == torch.int64
    with DataLoader(StreamingDataset(**options), batch_size=4) as loader:
        iterator = iter(loader)
        begun = [next(iterator)["tokens"] for _ in range(11)]
        state = loader.state_dict()
    with DataLoader(StreamingDataset(**options), batch_size=4, num_workers=1) as loader:
        loader.load_state_dict(state)
        rest = [batch["tokens"] for batch in loader]
    assert [each.tolist() for each in [*begun, *rest]] == [each.tolist() for each in batches]


def test_streams_of_tokens_are_mixed_with_others_and_packs_are_collated(tmp_path):
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        np.full(1000, value, "uint16").tofile(tmp_path / name / "x.bin")
    tokens = {"window_size": 10, "dtype": "uint16", "end_of_document": 0}
    streams = [Stream(local=str(tmp_path / "a"), proportion=3), Stream(local=str(tmp_path / "b"), proportion=1)]
    dataset = StreamingDataset(streams=streams, tokens=tokens, epoch_size=400, batch_size=8, shuffle=True)
    with StreamingDataLoader(dataset, batch_size=8, collate_fn=collate_packed, num_workers=0) as loader:
        batches = list(loader)
    found = torch.cat([batch["tokens"].flatten() for batch in batches])
    assert (found == 1).sum() == 3 * (found == 2).sum()
    assert {"cu_seqlens", "position_ids"} <= batches[0].keys()


def test_tables_and_tokens_in_one_folder_are_streams_of_their_own(tmp_path):
    list(write(tmp_path / "both", numpys))
    write_parquet(tmp_path / "both" / "a.parquet", range(20), [20])
    options = {"local": str(tmp_path / "both"), "batch_size": 2}
    assert StreamingDataset(**options).num_samples == 20
    assert StreamingDataset(tokens={"window_size": 100}, **options).num_samples == 7 + 4


def refused(error, pattern, folder, tokens, **options):
    with pytest.raises(error, match=pattern):
        StreamingDataset(local=str(folder), tokens=tokens, batch_size=2, **options)


def test_bad_input_is_named(tmp_path):
    list(write(tmp_path / "bare", bare))
    list(write(tmp_path / "npy", numpys))
    list(write(tmp_path / "megatron", megatron))
    (tmp_path / "nothing").mkdir()
    window = {"window_size": 10}
    refused(ConfigurationError, r"tokens = None: expected a mapping .*for the tokens of 0\.npy", tmp_path / "npy", None)
    refused(ConfigurationError, r"dtype = None: .*0\.bin", tmp_path / "bare", window)
    refused(ConfigurationError, r"dtype = .*int64.*0\.npy says", tmp_path / "npy", window | {"dtype": "int64"})
    for wrong in ({}, 5, window | {"size": 1}, window | {"boundaries": True}):
        refused(ConfigurationError, r"a mapping with window_size.*end_of_document adds bound", tmp_path / "npy", wrong)
    refused(ConfigurationError, r"columns = 'text'.*tokens, and with", tmp_path / "npy", window, columns=["text"])
    refused(ShardNotFoundError, r"\.npy, \.bin", tmp_path / "nothing", window)
    (tmp_path / "megatron" / "1.bin").write_bytes(b"short")
    refused(ShardCorruptError, r"1\.bin.*size is 5.*180 bytes, where 1\.idx ends", tmp_path / "megatron", window)
    (tmp_path / "megatron" / "1.bin").unlink()
    refused(ConfigurationError, r"1\.idx is an index, and the stream lacks", tmp_path / "megatron", window)
    stream = StreamingDataset(local=str(tmp_path / "npy"), tokens=window | {"vocab_size": 50}, batch_size=2)
    with pytest.raises(ShardCorruptError, match=r"0\.npy.*token \d+.*from 0 to 49, for vocab_size=50"):
        list(stream)
    with MDSWriter(out=str(tmp_path / "mds"), columns={"number": "int"}) as writer:
        writer.write({"number": 1})
    refused(ConfigurationError, re.escape("shard.00000.mds is mds, and holds no tokens"), tmp_path / "mds", window)
    stream = StreamingDataset(local=str(tmp_path / "npy"), tokens=window, batch_size=2)
    assert len(stream[0]["tokens"]) == 10
    before = (tmp_path / "npy" / "0.npy").stat()
    (tmp_path / "npy" / "0.npy").write_bytes(b"cut off")
    os.utime(tmp_path / "npy" / "0.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ShardCorruptError, match=r"0\.npy.*written again"):
        stream[0]


@pytest.mark.parametrize("has_cache", [False, True])
@pytest.mark.parametrize("how", [{}, {"window_fn": list}])
def test_a_file_that_has_changed_between_two_runs_is_named_at_a_resume(tmp_path, has_cache, how):
    [path, *_] = write(tmp_path / "npy", numpys)

    list(write(tmp_path / "b", numpys))  # the same names

    def loader(run, size=10):
        where = {"remote": str(tmp_path), "local": str(tmp_path / f"run {run}")}
        where = where if has_cache else {"local": where["remote"]}
        streams = [Stream(**where, split="npy"), Stream(local=str(tmp_path), split="b")]
        tokens = {"window_size": size, "stride": 10}
        dataset = StreamingDataset(streams=streams, tokens=tokens, batch_size=2, num_canonical_nodes=2)
        return DataLoader(dataset, 2, collate_fn=list, **how)

    made = loader(1)
    next(iter(made))
    state = json.loads(json.dumps(made.state_dict()))
    loader(2).load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"files\[0\].* read in another way"):
        loader(2, 9).load_state_dict(state)
    tokens = np.load(path)
    tokens[0] += 1
    np.save(path, tokens)
    with pytest.raises(StateMismatchError, match=r"files\[0\].*has changed since.*: 0\.npy of .*npy; load"):
        loader(3).load_state_dict(state)
    accepting, again = loader(3), loader(4)
    accepting.load_state_dict(state, accept={"files"})
    after = json.loads(json.dumps(accepting.state_dict()))
    assert str(after).count("'accepted': [{'field': 'files', 'epoch': 0, 'step': ") == 1
    again.load_state_dict(after)
    assert len(list(accepting)) == len(list(again)) == len(list(loader(5))) - 1
    made.end_epoch()
    loader(3).load_state_dict(made.state_dict())
