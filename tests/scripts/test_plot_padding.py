import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)


def test_lines_are_cut_at_newlines_and_at_their_longest():
    from demo_gpt.lines import edges_of_lines

    text = b"\nab\n\nabcdefgh\nx\nend"
    starts, stops = edges_of_lines(np.frombuffer(text, np.uint8), 5)
    lines = [text[start:stop] for start, stop in zip(starts, stops, strict=True)]
    assert lines == [b"ab\n", b"abcde", b"fgh\n", b"x\n", b"end"]


def test_padding_is_the_share_that_no_sample_fills():
    from plot_padding import padding

    assert padding(np.array([1, 3, 4, 4, 9]), 2) == pytest.approx(2 / 14)  # what fills no batch does not count


@pytest.mark.usefixtures("processes")
def test_the_script_prints_the_shares_of_a_corpus(tmp_path):
    for place in range(4):
        (tmp_path / f"{place}.py").write_text("\n".join("x" * (index * 37 % 91) for index in range(500)))
    command = [sys.executable, str(SCRIPTS / "plot_padding.py"), "--source", str(tmp_path), "--batch-size", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "1,976 lines of 4 files" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("| 8 |")).split("|")
    shares = [float(cell.strip(" %")) for cell in row[2:] if cell.strip()]
    assert shares[0] > 40
    assert shares[1:] == sorted(shares[1:], reverse=True)
    assert shares[-1] < 5
