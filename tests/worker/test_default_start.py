"""How the workers of a DataLoader start where the program says nothing: as torch's do, but that a hang at the start ends."""

import sys

import pytest

pytestmark = pytest.mark.usefixtures("processes")

SETTINGS = """
import multiprocessing
import sys

import fkat_data

class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        import colorsys

        return getattr(colorsys, "SET_BY_THE_PROGRAM", "as imported")

if len(sys.argv) > 1:
    multiprocessing.set_start_method(sys.argv[1])
import colorsys

colorsys.SET_BY_THE_PROGRAM = "set"
options = {"multiprocessing_context": sys.argv[2]} if len(sys.argv) > 2 else {}
with fkat_data.DataLoader(Numbers(), None, num_workers=1, timeout=600, **options) as loader:
    print(set(loader), multiprocessing.get_start_method(allow_none=True))
"""


@pytest.mark.parametrize(
    ("methods", "found"),
    [
        ([], "set" if sys.version_info < (3, 14) else "as imported"),
        (["fork"], "set"),
        (["spawn"], "as imported"),
        (["forkserver"], "as imported"),
        (["fork", "forkserver"], "as imported"),
        (["spawn", "fork"], "set"),
    ],
)
def test_workers_have_what_the_program_has_set_where_those_of_torch_have(methods, found, prepared, run_script):
    chosen = methods[0] if methods else None
    assert run_script(SETTINGS, *methods, by="fork").stdout == f"{ {found} } {chosen}\n"


HANGING = """
import logging
import os
import sys
import threading
import time
from pathlib import Path

import fkat_data

logging.basicConfig(stream=sys.stdout, format="%(message)s")
go_on, program = Path(sys.argv[1]), os.getpid()

def hang():
    while not go_on.exists():
        time.sleep(0.1)

class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

os.register_at_fork(after_in_child=hang)
numbers = Numbers()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
if len(sys.argv) > 2:
    numbers.lock = threading.Lock()

    class Opener(logging.Handler):
        def emit(self, record):
            go_on.touch()

    logging.getLogger().addHandler(Opener())
with fkat_data.DataLoader(numbers, None, num_workers=2) as loader:
    print(list(loader), list(loader))

"""


def test_forks_that_hang_at_their_start_are_replaced_where_the_dataset_can_be_sent(prepared, tmp_path):
    (tmp_path / "script.py").write_text(HANGING)
    commands = [("script.py", tmp_path / "go on"), ("script.py", tmp_path / "go on, locked", "locked")]
    pickled, locked = prepared.run_together(commands, folder=tmp_path, variables=[{}, {}])
    for done, last_words in ((pickled, "others start from the template"), (locked, "they stay, because")):
        assert done.returncode == 0, done.stdout + done.stderr
        *said, last = done.stdout.splitlines()
        assert last == "[0, 1, 2, 3] [0, 1, 2, 3]"
        assert "forks of this program, and hang at their start" in said[0]
        assert last_words in said[0]
    assert "they stay, because" not in pickled.stdout
    assert "others start from the template" not in locked.stdout
