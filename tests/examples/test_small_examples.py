"""Small examples run in process, in an empty folder; the notebook runs with worker processes."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
IN_PROCESS = ["loader.multiprocessing=false"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny models are slower on several, and much slower beside other work

    def run(name, *overrides):
        config = OmegaConf.merge(
            OmegaConf.load(EXAMPLES / name / "train.yaml"), OmegaConf.from_dotlist(list(overrides))
        )
        return runpy.run_path(str(EXAMPLES / name / "train.py"))["main"](config)

    yield run
    torch.set_num_threads(num_threads)


@pytest.mark.long
def test_sorting_lines_by_length_saves_padding(run):
    loss, padding = run("text", *IN_PROCESS)
    assert 0 < loss < 0.9
    assert padding < 0.15 < run("text", "buffer_size=16", *IN_PROCESS)[1]


@pytest.mark.long
def test_notes_are_told_apart(run):
    assert run("audio", *IN_PROCESS) > 0.8


def test_the_notebook_runs_cell_by_cell(processes, tmp_path, run_script):
    cells = json.loads((EXAMPLES / "notebook" / "first_loader.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 5
    assert "the trainer waited" in run_script("\n".join(code)).stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/*.py")), ids=lambda path: path.parent.name)
def test_an_example_has_at_most_80_lines(path):
    assert len(path.read_text().splitlines()) <= 80
