"""What the tests of faults rest on: a process fails where it is to, once, and the package itself cannot be armed."""

import ast
from pathlib import Path

import pytest

import fkat_data

ROOT = Path(fkat_data.__file__).parent
OF_CHILDREN = (
    "lifeline.py",
    "forkserver_main.py",
    "process_main.py",
    "fork_safety.py",
    "program_fork.py",
    "worker_contracts.py",
)


@pytest.mark.long
def test_no_line_of_the_package_lets_its_own_process_fail():
    """But for the lifeline of a worker, whose trainer is gone, the processes that fork, and what a contract has die."""
    offenders = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            ends = name in ("os._exit", "os.abort", "signal.raise_signal", "sys.settrace", "sys.setprofile")
            kills = name in ("os.kill", "os.killpg") and "os.getp" in ast.unparse(node)
            if (ends or kills) and path.name not in OF_CHILDREN:
                offenders.append(f"{path}:{node.lineno}: {name}")
    assert not offenders, "\n".join(offenders)
