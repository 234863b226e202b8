import sys
import traceback

import pytest
import torch
from loader_examples import make

from fkat_data import DataLoaderFactory
from fkat_data.datasets import JsonDataset
from fkat_data.errors import ShardError
from fkat_data.tracebacks import fold, folded_text

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


def raised(**options):
    with (
        make(["a"], DataLoaderFactory(Broken, batch_size=2), **options) as loader,
        pytest.raises(KeyError) as caught,
    ):
        list(loader)
    return "".join(traceback.format_exception(caught.value))


@both_modes
def test_an_error_in_a_dataset_shows_the_users_frames_and_at_most_two_of_ours(multiprocessing):
    text = raised(multiprocessing=multiprocessing)
    assert 'raise KeyError("label")' in text
    assert "at microbatch 2 of shard 'a'" in text
    assert text.count(f"fkat_data{'/'}") <= 3  # __next__, next and the loader_examples' own call
    assert ("FKAT_DATA_FULL_TRACEBACK=1" in text) == multiprocessing


def test_the_environment_keeps_all_frames(monkeypatch):
    monkeypatch.setenv("FKAT_DATA_FULL_TRACEBACK", "1")
    assert raised(multiprocessing=False).count("worker/produce.py") >= 3


def test_an_error_that_this_library_raises_below_the_users_code_keeps_its_frames(tmp_path):
    with pytest.raises(ShardError) as caught:
        JsonDataset(str(tmp_path / "nowhere.jsonl"))
    text = folded_text(caught.value)
    assert "fkat_data/" in text
    assert "FKAT_DATA_FULL_TRACEBACK" not in text


def test_an_error_without_a_frame_of_the_users_stays_as_it_is():
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", fold.__code__.co_filename, "exec"))  # looks as if this library had raised it
    error = caught.value
    error.__traceback__ = before = error.__traceback__.tb_next
    fold(error)
    assert error.__traceback__ is before is not None
    assert "FKAT_DATA_FULL_TRACEBACK" not in folded_text(error)


def test_ipython_hides_the_frames_of_the_loader(capsys):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell(colors="nocolor")
    hook = sys.excepthook
    shell.user_ns |= {"loader": make(["a"], DataLoaderFactory(Broken, batch_size=2))}
    shell.run_cell("for microbatch in loader:\n    pass")
    sys.excepthook = hook
    shown = capsys.readouterr().out
    assert "skipping hidden" in shown
    assert "KeyError" in shown
    assert len(shown.splitlines()) < 45
