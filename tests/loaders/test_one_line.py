"""A script as users write it, before and after the one line is changed."""

import re
import subprocess
from pathlib import Path

import pytest

import fkat_data

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "dataloader.md"

SCRIPT = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Points(Dataset):
    def __init__(self, count):
        points = np.random.default_rng(0)
        self.x = torch.from_numpy(points.normal(size=(count, 4))).float()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.x[index].sum(), "name": f"point {index}"}


class Lines(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 20, info.num_workers)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Points(50), batch_size=8, num_workers=2, drop_last=True, pin_memory=False)
    lines = DataLoader(Lines(), batch_size=3, num_workers=2)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for step, batch in enumerate(loader):
            loss = nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, step, len(loader), batch["name"][0], loss.item().hex())
        print([line.tolist() for line in lines])
    x = next(iter(loader))["x"]
    print(x.shape, len(loader.dataset), loader.batch_size, type(loader.sampler).__name__)


if __name__ == "__main__":
    main()
"""


def test_a_script_gives_the_same_losses_after_one_changed_line(prepared, run_script):
    changed = SCRIPT.replace("from torch.utils.data import DataLoader", "from fkat_data import DataLoader")
    assert changed.count("fkat_data") == 1
    before, after = (run_script(text, by="fork") for text in (SCRIPT, changed))
    assert after.stdout == before.stdout
    assert len(after.stdout.splitlines()) == 3 * 7 + 1
    assert not after.stderr


@pytest.mark.parametrize(
    "script",
    [
        "from torch.utils.data import DataLoader\nmade = DataLoader(range(3))",
        "from torch.utils.data import Dataset, DataLoader\nmade = DataLoader(range(3))",
        "import torch\nimport torch.utils.data\nmade = torch.utils.data.DataLoader(range(3))",
    ],
)
def test_a_line_of_the_page_changes_each_form_of_the_import(processes, tmp_path, script):
    made = []
    for command in re.findall(r"sed -i .*? train\.py", PAGE.read_text()):
        (tmp_path / "train.py").write_text(script)
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        names = {}
        exec((tmp_path / "train.py").read_text(), names)
        made.append(type(names["made"]))
    assert len(made) == 3
    assert fkat_data.DataLoader in made
