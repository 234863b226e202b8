import contextlib
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from loader_examples import make

import fkat_data
from fkat_data import DataLoader, DataLoaderFactory
from fkat_data.datasets import JsonDataset
from fkat_data.errors import ShardError
from fkat_data.errors.tracebacks import hide_own_frames, shortened_text
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

both_modes = pytest.mark.parametrize("multiprocessing", [False, True], ids=["in process", "worker process"])


class Broken(torch.utils.data.Dataset):
    def __init__(self, shard):
        self.shard = shard

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 5:
            raise KeyError("label")
        return index


class Slow(Broken):
    def __getitem__(self, index):
        time.sleep(9)


def told_by(context, kind):
    """What a user reads of the error that ends an iteration."""
    with context as loader, pytest.raises(kind) as caught:
        list(loader)
    return "".join(traceback.format_exception(caught.value))


def raised(**options):
    return told_by(make(["a"], DataLoaderFactory(Broken, batch_size=2), **options), KeyError)


@both_modes
def test_an_error_in_a_dataset_shows_the_users_frames_and_none_of_ours(multiprocessing):
    text = raised(multiprocessing=multiprocessing)
    assert 'raise KeyError("label")' in text
    assert "at microbatch 2 of shard 'a'" in text
    assert f"{Path(fkat_data.__file__).parent}/" not in text
    assert ("FKAT_DATA_FULL_TRACEBACK=1" in text) == multiprocessing


def test_the_environment_keeps_all_frames(monkeypatch):
    monkeypatch.setenv("FKAT_DATA_FULL_TRACEBACK", "1")
    assert raised(multiprocessing=False).count("worker/produce.py") >= 3


@both_modes
def test_an_error_whose_message_says_all_shows_the_line_that_asked(multiprocessing, tmp_path):
    path = str(tmp_path / "nowhere.jsonl")
    loader = make([path], DataLoaderFactory(JsonDataset, batch_size=2), multiprocessing=multiprocessing)
    text = told_by(loader, ShardError)
    assert text.count("File ") == 1
    assert "list(loader)" in text


def test_an_error_of_another_library_begins_there():
    text = told_by(DataLoader([torch.ones(1), torch.ones(2)], batch_size=2), RuntimeError)
    assert f"{Path(fkat_data.__file__).parent}/" not in text
    assert "_utils/collate.py" in text


def test_ctrl_c_shows_the_line_that_waited(processes):
    def press(number, frame):
        package = str(Path(fkat_data.__file__).parent)
        if any(line.filename.startswith(package) for line in traceback.extract_stack(frame)):
            signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGALRM, press)
    with make(["a"], DataLoaderFactory(Slow, batch_size=2)) as loader:
        iterator = iter(loader)
        signal.setitimer(signal.ITIMER_REAL, 0.5, 0.1)
        with pytest.raises(KeyboardInterrupt) as caught:
            next(iterator)
        signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    assert {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)} == {__file__}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_missing_shard_of_a_stream_shows_the_line_that_asked(num_workers, tmp_path, processes):
    with MDSWriter(out=str(tmp_path), columns={"number": "int"}) as writer:
        writer.write({"number": 1})
    loader = StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=1), num_workers=num_workers)
    (tmp_path / "shard.00000.mds").unlink()
    assert told_by(contextlib.nullcontext(loader), ShardError).count("File ") == 1


def test_an_error_without_a_frame_of_the_users_stays_as_it_is():
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", hide_own_frames.__code__.co_filename, "exec"))  # looks as if this library had raised it
    error = caught.value
    error.__traceback__ = before = error.__traceback__.tb_next
    hide_own_frames(error)
    assert error.__traceback__ is before is not None
    assert "FKAT_DATA_FULL_TRACEBACK" not in shortened_text(error)


def test_ipython_shows_no_frames_of_the_loader(capsys, monkeypatch):
    pytest.importorskip("IPython")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # it warns of another one
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell(colors="nocolor")
    hook = sys.excepthook
    shell.user_ns |= {"loader": make(["a"], DataLoaderFactory(Broken, batch_size=2))}
    shell.run_cell("for microbatch in loader:\n    pass")
    sys.excepthook = hook
    shown = capsys.readouterr().out
    assert "KeyError" in shown
    assert f"{Path(fkat_data.__file__).parent}/" not in shown
    assert len(shown.splitlines()) < 25
