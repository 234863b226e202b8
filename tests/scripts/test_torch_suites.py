"""A test that is known to fail counts as failed when it passes, or when it fails for another reason."""

import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "torch_suites.py"
SUITE = """
import unittest
from torch.utils.data import DataLoader

class TestIt(unittest.TestCase):
    def test_passes(self):
        self.assertTrue(DataLoader.__module__.startswith("fkat_data"))

    def test_other_length(self):
        self.assertEqual(len(DataLoader([1, 2])), 3)

    def test_other_length_by_worker(self):
        pass
"""
LINE = '"TestIt.{name}" = {{ error = \'{error}\', {option}why = "so it is decided" }}\n'


def outcome(tmp_path, **known):
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "suite.py").write_text(SUITE)
    lines = [LINE.format(name=name, error=error, option=option) for name, (error, option) in known.items()]
    (tmp_path / "torch_suites.toml").write_text('["differs by decision"]\n' + "".join(lines))
    command = [sys.executable, str(tmp_path / "torch_suites.py"), str(tmp_path / "suite.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return ended.returncode, ended.stdout


def test_the_known_reason_counts_as_a_decision_and_another_one_as_a_failure(tmp_path, processes):
    code, said = outcome(
        tmp_path,
        test_other_length=("^AssertionError: 2 != 3", ""),
        test_other_length_by_worker=("x", "may_pass = true, "),
    )
    assert (code, said) == (0, "2 differs by decision, 1 passed\n")
    code, said = outcome(tmp_path, test_other_length=("^TypeError", ""), test_passes=("^AssertionError", ""))
    assert code == 1
    assert "test_other_length: 'AssertionError: 2 != 3', not as torch_suites.toml says: ^TypeError" in said
    assert "test_passes: passes, but torch_suites.toml says that it fails" in said
    assert said.endswith("2 failed, 1 passed\n")
