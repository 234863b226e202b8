"""A loop that begins the next epoch, because the one before was left, says in the log what it leaves out."""

import logging
import sys
from itertools import islice

import pytest
from torch.utils.data import Dataset, IterableDataset

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader
from fkat_data.mixing import DictDataLoader, RoundRobin
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

LENGTH = 12


class Samples(Dataset):
    """Its third sample is interrupted once, if that is due."""

    interrupts = False

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        if index == 2 and Samples.interrupts:
            Samples.interrupts = False
            raise KeyboardInterrupt
        return index


class Lines(IterableDataset):
    def __iter__(self):
        return map(Samples().__getitem__, range(LENGTH))


class Streamed(StreamingDataset):
    def __getitem__(self, at):
        sample = super().__getitem__(at)
        return Samples()[sample["number"]]


def sharded(_):
    return ShardedDataLoader(7, ["one"], DataLoaderFactory(lambda _: Samples()), multiprocessing=False)


def numbered(_):
    return DataLoader(Samples())


def shuffled_elsewhere(_):
    return DataLoader(Samples(), sampler=list(range(LENGTH)))


def iterable(_):
    return DataLoader(Lines())


def mixture(_):
    return DictDataLoader({"one": numbered(_)}, RoundRobin(["one"]), key=None)


def stream(folder):
    with MDSWriter(out=str(folder / "data"), columns={"number": "int"}) as writer:
        for number in range(LENGTH):
            writer.write({"number": number})
    return StreamingDataLoader(Streamed(local=str(folder / "data"), batch_size=1))


@pytest.fixture(
    params=[sharded, numbered, shuffled_elsewhere, iterable, mixture, stream],
    ids=lambda made_by: made_by.__name__,
)
def loader(request, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    Samples.interrupts = False
    with request.param(tmp_path) as made:
        yield made


def said(caplog, level):
    return [
        each for each in caplog.records if each.levelno == level and "microbatches are left out" in each.getMessage()
    ]


def number_in(microbatch):
    return int(microbatch[-1] if isinstance(microbatch, tuple) else microbatch)


def taken(loader, count):
    return [number_in(microbatch) for _, microbatch in zip(range(count), loader, strict=False)]


def test_a_loop_after_an_interrupted_call_warns_of_what_it_leaves_out(loader, caplog):
    Samples.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    num_received = loader.step
    assert 1 <= num_received <= 2
    assert not said(caplog, logging.WARNING)
    assert len(list(loader)) == LENGTH
    text = said(caplog, logging.WARNING)[0].getMessage()
    assert f"epoch 0 was interrupted after {num_received} microbatch" in text
    assert "loader.load_state_dict(loader.state_dict())" in text


def test_a_loop_after_one_that_was_interrupted_in_its_body_warns_where_a_notebook_has_shown_it(
    loader, caplog, monkeypatch
):
    taken(loader, 3)
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)  # as a notebook does
    assert taken(loader, 2) == [0, 1]
    assert "epoch 0 was interrupted after 3 microbatches" in said(caplog, logging.WARNING)[0].getMessage()
    caplog.clear()
    taken(loader, 2)  # that interruption was of another loop
    assert not said(caplog, logging.WARNING)


def test_a_loop_after_break_says_so_without_a_warning(loader, caplog):
    taken(loader, 3)
    taken(loader, 1)
    assert "epoch 0 was left after 3 microbatches" in said(caplog, logging.INFO)[0].getMessage()
    assert not said(caplog, logging.WARNING)


def test_a_loop_for_each_update_is_one_warning_that_says_how_to_accumulate(loader, caplog):
    for _ in range(6):
        assert [number_in(microbatch) for microbatch in islice(loader, 4)] == [0, 1, 2, 3]
    # A set: the source of a mixture says it, too.
    warnings = [*{each.getMessage() for each in caplog.records if each.levelno == logging.WARNING}]
    assert len(warnings) == 1
    assert "epochs 0 and 1 were left after 4 microbatches each" in warnings[0]
    assert "islice(iterator, 4)" in warnings[0]
    assert len({each.getMessage() for each in said(caplog, logging.INFO)}) == 1
    caplog.clear()
    loader.end_epoch()
    iterator = iter(loader)
    updates = [[*map(number_in, islice(iterator, 4))] for _ in range(3)]
    assert updates == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert not [each for each in caplog.records if each.levelno == logging.WARNING]


def test_a_loop_with_another_setting_says_what_it_leaves_out(caplog):
    caplog.set_level(logging.INFO)
    loader = DataLoader(Samples())
    taken(loader, 3)
    loader.collate_fn = lambda items: items[0]
    assert taken(loader, 1) == [0]
    assert "epoch 0 was left after 3 microbatches" in said(caplog, logging.INFO)[0].getMessage()


def test_what_is_left_on_purpose_or_gone_on_with_is_not_mentioned(loader, caplog):
    taken(loader, 3)
    loader.end_epoch()
    assert taken(loader, 3) == [0, 1, 2]
    loader.load_state_dict(loader.state_dict())
    assert [number_in(microbatch) for microbatch in loader] == list(range(3, LENGTH))
    assert [number_in(microbatch) for microbatch in loader] == list(range(LENGTH))
    assert not said(caplog, logging.INFO)
    assert not said(caplog, logging.WARNING)


def test_a_loop_that_went_on_after_an_interruption_and_was_left_later_is_no_warning(loader, caplog):
    Samples.interrupts = True
    iterator = iter(loader)
    received = []
    while len(received) < 6:
        try:
            received.append(number_in(next(iterator)))
        except KeyboardInterrupt:
            continue
    assert received == list(range(6))
    taken(loader, 1)
    assert not said(caplog, logging.WARNING)
