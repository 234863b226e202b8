"""Users' own programs, without an `if __name__ == "__main__"` guard: scripts, standard input, a REPL, a notebook."""

import pytest

#: Defines everything in __main__: dataset, microbatch class, base class, constant, lambda.
PROGRAM = """
import dataclasses
import torch
from torch.utils.data import DataLoader, Dataset
from fkat_data import DataLoaderFactory, ShardedDataLoader

OFFSET = 100

class Base(Dataset):
    def __len__(self):
        return 3

class Numbers(Base):
    def __init__(self, shard):
        super().__init__()
    def __getitem__(self, index):
        return OFFSET + index

@dataclasses.dataclass
class Batch:
    tensor: torch.Tensor
    large: torch.Tensor

def collate(samples):
    return Batch(torch.tensor(samples), torch.ones(3000))

loader = ShardedDataLoader(
    7,
    ["a", "b"],
    DataLoaderFactory(Numbers, dataloader_generator=lambda dataset, **options: DataLoader(dataset, 2, collate_fn=collate)),
    num_shard_prefetches=1,
)

batches = list(loader)
print("RESULT", [batch.tensor.tolist() for batch in batches], all(type(batch) is Batch for batch in batches))
loader.close()
"""
RESULT = "RESULT [[100, 101], [102], [100, 101], [102]] True"


# At the prompt, which is on standard error, a blank line ends a block, and a class's body may hold none.
@pytest.mark.parametrize("by", ["file", "stdin", "-i"])
def test_a_program_that_defines_its_dataset_in_main_runs(run_script, by):
    done = run_script(PROGRAM, by=by)
    assert done.stdout.strip() == RESULT, done.stdout + done.stderr
    assert done.stderr == "" or by == "-i"


def test_a_program_that_never_closes_its_loader_ends_in_silence(run_script):
    done = run_script(PROGRAM.replace("loader.close()", "iterator = iter(loader); next(iterator)"))
    assert done.stdout.strip() == RESULT
    assert done.stderr == ""


def test_a_programs_own_module_is_found_by_the_worker_and_its_exceptions_come_back_as_its_own(run_script, tmp_path):
    (tmp_path / "beside.py").write_text("def factory(shard):\n    return [shard, __name__]\n")
    done = run_script(
        """
import sys
import beside
from fkat_data import ShardedDataLoader

class MineError(Exception):
    pass

def factory(shard):
    yield from beside.factory(shard)
    raise MineError("told", 5)

with ShardedDataLoader(0, ["a"], factory) as loader:
    try:
        for microbatch in loader:
            print(microbatch, *sys.argv[1:])
    except MineError as error:
        print(type(error) is MineError, error.args)
""",
        "--an-option",
    )
    assert done.stdout == "a --an-option\nbeside --an-option\nTrue ('told', 5)\n"


NOTEBOOK = """
import json, os, pathlib, sys, warnings
warnings.simplefilter("ignore")  # jupyter's own
import nbformat
from nbclient import NotebookClient

here = pathlib.Path.cwd()
specification = here / "kernels" / "here"
specification.mkdir(parents=True)
argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
(specification / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "here", "language": "python"}))
os.environ.update(JUPYTER_PATH=str(here), IPYTHONDIR=str(here / "ipython"))
cells = [nbformat.v4.new_code_cell(cell) for cell in (here / "program").read_text().split("\\n\\n")]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, kernel_name="here", timeout=100, allow_errors=True).execute()
print("".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])))
"""


def test_a_notebook_that_defines_its_dataset_in_a_cell_runs(run_script, tmp_path):
    # In a process of its own: jupyter's event loop and sockets stay open until its end.
    (tmp_path / "program").write_text(PROGRAM)
    assert run_script(NOTEBOOK).stdout.strip() == RESULT


INTERRUPTED = """
import signal
import torch
from fkat_data import DataLoader
loader = DataLoader(torch.arange(12), batch_size=1)

for batch in loader:  # the cell that is interrupted
    if loader.step == 3:
        signal.raise_signal(signal.SIGINT)

for batch in loader:  # run again
    pass
print(loader.epoch)
"""


def test_a_notebook_that_runs_an_interrupted_cell_again_says_what_is_left_out(run_script, tmp_path):
    (tmp_path / "program").write_text(INTERRUPTED)
    said = run_script(NOTEBOOK).stdout.strip()
    assert said.startswith("epoch 0 was interrupted after 3 microbatches: its other microbatches are left out"), said
    assert said.endswith("\n2"), said
