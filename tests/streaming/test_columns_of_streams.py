"""Streams whose columns differ: a batch of both names the streams and their columns; what copes with them works."""

import logging

import pytest
from torch.utils.data import default_collate

from fkat_data import DataLoader
from fkat_data.streaming import JSONWriter, MDSWriter, Stream, StreamingDataLoader, StreamingDataset

COLUMNS = {"a": {"number": "int", "text": "str"}, "b": {"number": "int"}, "c": {"number": "int", "label": "int"}}
VALUES = {"number": 5, "text": "five", "label": 1}


@pytest.fixture(scope="module", params=[MDSWriter, JSONWriter])
def folders(request, tmp_path_factory):
    found = {}
    for name, columns in COLUMNS.items():
        found[name] = str(tmp_path_factory.mktemp("data") / name)
        with request.param(out=found[name], columns=columns) as writer:
            for _ in range(10):
                writer.write({column: VALUES[column] for column in columns})
    return found


def made(folders, names="ab", loader_type=StreamingDataLoader, kind=StreamingDataset, of_loader=None, **options):
    streams = [Stream(local=folders[name]) for name in names]
    return loader_type(kind(streams=streams, batch_size=4, shuffle=True, **options), 4, **(of_loader or {}))


class Iterated(StreamingDataset):
    def __iter__(self):
        yield from super().__iter__()


def as_is(sample):
    return sample


def numbers_alone(samples):
    return [sample["number"] for sample in samples]


def texts(samples):
    return [sample["text"] for sample in samples]


def check_named(text, folders, names):
    for stream, name in enumerate(names):
        assert f"stream {stream} (" in text
        assert f"{folders[name][-20:]}) has {', '.join(sorted(COLUMNS[name]))}" in text
    assert "columns= that all streams have" in text


@pytest.mark.parametrize("names", ["ab", "ac", "ca"])
@pytest.mark.parametrize("loader_type", [StreamingDataLoader, DataLoader])
def test_a_batch_of_both_names_the_streams_and_their_columns(folders, caplog, names, loader_type):
    loader = made(folders, names, loader_type)
    iterator = iter(loader)
    check_named(caplog.text, folders, names)
    with pytest.raises(KeyError) as caught:
        list(iterator)
    check_named("\n".join(caught.value.__notes__), folders, names)


@pytest.mark.parametrize(
    "options",
    [
        {"transform": as_is},
        {"kind": Iterated},
        {"of_loader": {"collate_fn": texts}},
        {"of_loader": {"window_fn": list, "window_size": 8}},
        {"of_loader": {"window_fn": list, "window_size": 8, "collate_fn": texts}},
    ],
    ids=["a transform", "an __iter__", "a collate_fn", "windows", "a collate_fn of windows"],
)
def test_where_the_users_code_makes_batches_a_note_on_its_error_does(folders, options):
    with pytest.raises(KeyError, match="text") as caught:
        list(made(folders, **options))
    check_named("\n".join(caught.value.__notes__), folders, "ab")


@pytest.mark.parametrize(
    "options",
    [
        {"columns": ["number"]},
        {"transform": lambda sample: {"number": sample["number"]}},
        {"batching_method": "per_stream"},
        {"batching_method": "device_per_stream"},
        {"of_loader": {"collate_fn": numbers_alone}},
        {"of_loader": {"collate_fn": lambda samples: default_collate(numbers_alone(samples))}},
        {"names": "a"},
    ],
)
def test_what_copes_with_them_works_without_a_word(folders, caplog, options):
    with caplog.at_level(logging.WARNING):
        assert sum(1 for _ in made(folders, **options)) >= 3
    assert "columns" not in caplog.text
