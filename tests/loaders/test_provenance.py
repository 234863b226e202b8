"""A microbatch says which samples it was made of."""

import json
from itertools import islice

import pytest
from drop_in_examples import Counted
from hypothesis import given
from hypothesis import strategies as st
from streaming_examples import write

from fkat_data import ConfigurationError, DataLoader
from fkat_data.datasets import JsonDataset
from fkat_data.streaming import StreamingDataLoader, StreamingDataset, World


def repeated(samples):
    return [(sample, row) for sample in samples for row in range(sample % 3)]


class Broken(Counted):
    def __getitem__(self, index):
        return [index][index % 7 == 4]  # or an error


def samples_of(loader):
    return [sample for each in loader.provenance() for sample in each.samples]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_microbatch_names_its_samples_the_last_of_an_epoch_too(processes, num_workers, shuffle):
    with DataLoader(range(31), 4, shuffle=shuffle, seed=2, collate_fn=list, num_workers=num_workers) as loader:
        for _ in range(2):
            for batch in loader:
                assert samples_of(loader) == batch
            assert samples_of(loader) == batch
        state = loader.state_dict()
    other = DataLoader(range(31), 4, shuffle=shuffle, seed=2, collate_fn=list)
    other.load_state_dict(state)
    with pytest.raises(ConfigurationError, match="provenance"):
        other.provenance()
    assert next(iter(other)) == samples_of(other)


@given(st.integers(1, 40), st.integers(1, 9), st.sampled_from([None, 1, 3, 8]), st.integers(0, 9))
def test_rows_name_their_windows_and_where_in_them_they_are(num_samples, window_size, size, cut):
    def opened():
        options = {"shuffle": True, "seed": 3, "on_sample_error": "skip", "collate_fn": list if size else None}
        return DataLoader(Broken(num_samples), size, window_fn=repeated, window_size=window_size, **options)

    loader = opened()
    had = list(islice(loader, cut))
    state, loader = loader.state_dict(), opened()
    if len(had) == cut:
        loader.load_state_dict(state)
    for batch in loader:
        if loader.epoch > 1:
            break
        rows = []
        for part in loader.provenance():
            rows += repeated(part.samples)[slice(*part.rows)]
        assert rows == [tuple(int(value) for value in batch)] if size is None else rows == batch


def test_a_place_is_the_file_and_its_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(9)))
    batch = next(iter(loader := DataLoader(JsonDataset(str(path)), 3, shuffle=True, seed=1)))
    (found,) = loader.provenance()
    assert found.samples == batch["number"].tolist()
    assert all(f"line {sample}" in place and str(path) in place for sample, place in zip(*found[:2], strict=True))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_names_its_samples_shards_and_rows(processes, tmp_path, num_workers):
    data = write(tmp_path / "stream", 50, columns=("number",), per_shard=7)
    for windows in ({}, {"window_fn": list, "window_size": 5}):
        dataset = StreamingDataset(local=data, shuffle=True, batch_size=5, world=World())
        with StreamingDataLoader(dataset, num_workers=num_workers, **windows) as loader:
            for batch in loader:
                (found,) = loader.provenance()
                assert found.samples == batch["number"].tolist()
                assert all(location.startswith("row ") and ".mds" in location for location in found.locations)


def test_where_nothing_says_the_samples_an_error_does():
    with pytest.raises(ConfigurationError, match="provenance = None"):
        DataLoader(range(9), 2).provenance()
    loader = DataLoader(range(9), 2, sampler=[3, 1, 2])
    next(iter(loader))
    with pytest.raises(ConfigurationError, match="an order of the loader's"):
        loader.provenance()
