"""What the tests of faults rest on: a process fails where it is to, once, and the package itself cannot be armed."""

import ast
import os
from pathlib import Path

import pytest
from passed_lines import has_happened, passes, place_of, watch

import fkat_data
from fkat_data.arguments import size_bytes_of

ROOT = Path(fkat_data.__file__).parent


def run(folder, *armed):
    """Let a child pass a place three times; return how it ended and what it said after each and at its end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            watch(folder, armed)
            for number in range(3):
                size_bytes_of("cache_limit", "1kb")
                os.write(writer, f"{number}\n".encode())
            code = 0
        except (RuntimeError, OSError) as error:
            os.write(writer, f"{error!r}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as said:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.read().splitlines()


CALL = "arguments.py:size_bytes_of()"


@pytest.mark.usefixtures("processes")
def test_a_run_says_which_lines_and_calls_it_has_passed_and_how_often(tmp_path):
    assert run(tmp_path) == (0, ["0", "1", "2"])
    found = passes(tmp_path)
    assert found[CALL] == 3
    assert len(found) > 1
    assert {place.partition(":")[0] for place in found} == {"arguments.py"}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("action", "code", "said"),
    [
        ("kill", -9, []),
        ("exit0", 0, []),
        ("sleep", 0, ["1", "2"]),
        ("raise", 1, [f"RuntimeError('injected at {CALL}')"]),
        ("ENOSPC", 1, [f"OSError(28, 'injected at {CALL}: No space left on device')"]),
    ],
)
def test_an_action_happens_at_the_nth_pass_and_in_one_process_alone(action, code, said, tmp_path):
    assert run(tmp_path, (CALL, 2, action)) == (code, ["0", *said])
    assert has_happened(tmp_path, CALL, 2)
    assert run(tmp_path, (CALL, 2, action)) == (0, ["0", "1", "2"])


def test_a_line_is_found_by_what_it_says():
    file, number = place_of("worker/lifeline.py", "def bind").split(":")
    assert (ROOT / file).read_text().splitlines()[int(number) - 1].startswith("def bind")


@pytest.mark.long
def test_no_line_of_the_package_lets_its_own_process_fail():
    """But for the lifeline of a worker, whose trainer is gone, and for the template process."""
    offenders = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            ends = name in ("os._exit", "os.abort", "signal.raise_signal", "sys.settrace", "sys.setprofile")
            kills = name in ("os.kill", "os.killpg") and "os.getp" in ast.unparse(node)
            if (ends or kills) and path.name not in ("lifeline.py", "template.py"):
                offenders.append(f"{path}:{node.lineno}: {name}")
    assert not offenders, "\n".join(offenders)
