"""Each block of Python and of shell in the documentation runs; one that cannot says why in a comment above it.

A document's blocks run in their order, as one program in an empty folder. What the document takes for granted comes
from a file of its name in ``stages``: the part before ``# after`` comes before the blocks, the rest after them. Blocks
of shell run afterwards, in the same folder. A block below ``<!-- file: train.py -->`` is saved under that name, for the
blocks of shell, and is not run by itself.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import Block, blocks_of
from omegaconf import OmegaConf
from prepared import PreparedInterpreter

ROOT = Path(__file__).parents[2]
STAGES = Path(__file__).parent / "stages"
PATH = os.pathsep.join(map(str, (ROOT, STAGES, ROOT / "tests" / "lanes")))
SHELLS = {"bash", "console", "sh", "shell"}
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "adr" not in path.parts and any(block.reason is None for block in blocks_of(path.read_text()))
)
#: At the top of a stage: the blocks start no process and run in the test's own, which saves an import of torch.
IN_PROCESS = "# in process\n"
#: Blocks that show what others do, or files that are none of ours.
OTHER_LANGUAGES = {"json", "text", "mermaid"}
#: The site cuts off code that is as wide as this, in a window of 1280 pixels.
NUM_COLUMNS = 85


def stage_of(document):
    path = STAGES / f"{document.removeprefix('docs/').removesuffix('.md').replace('/', '_').lower()}.py"
    before, _, after = (path.read_text() if path.exists() else "").partition("# after\n")
    return before, after


def test_blocks_are_found_with_their_lines_and_reasons():
    text = "a\n```python\n1\n```\n\n<!-- not run: why -->\n```bash\nls\n```\n```\nplain\n```\n"
    text += "<!-- file: a.py -->\n```python\n2\n```\n"
    assert blocks_of(text) == [
        Block("python", "1\n", 2, None),
        Block("bash", "ls\n", 7, "why"),
        Block("python", "2\n", 14, None, "a.py"),
    ]


def test_every_block_has_a_language_that_is_known():
    known = {"python", "yaml", *SHELLS, *OTHER_LANGUAGES}
    found = {
        f"{document}:{block.line}: {block.language}"
        for document in DOCUMENTS
        for block in blocks_of((ROOT / document).read_text())
        if block.language not in known
    }
    assert not found


def test_no_line_of_code_is_wider_than_a_page_of_the_site():
    wide = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "fkat_data").rglob("*.py")]:
        margin = None  # columns before a block's fence, in a docstring
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if line.lstrip().startswith("```"):
                margin = None if margin is not None else line.index("`")
            elif margin is not None and len(line) - margin >= NUM_COLUMNS:
                wide.append(f"{path.relative_to(ROOT)}:{number}: {len(line) - margin} columns")
    assert not wide, "\n".join(wide)


def test_every_stage_has_its_document():
    assert {path.stem for path in STAGES.glob("*.py")} <= {
        document.removeprefix("docs/").removesuffix(".md").replace("/", "_").lower() for document in DOCUMENTS
    } | {"stage"}


def runs_in_process(document):
    return stage_of(document)[0].startswith(IN_PROCESS)


def program_of(document, folder):
    """Write the files that a document's blocks are, and return the rest as one program."""
    before, after = stage_of(document)
    text = (ROOT / document).read_text()
    parts = [before]
    for block in blocks_of(text):
        if block.reason is not None:
            continue
        if block.language == "yaml":
            OmegaConf.create(block.text)
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "python":
            parts.append(f"# {document}:{block.line}\n{block.text}")
    return "\n".join([*parts, after]) if len(parts) > 1 or before or after else ""


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if runs_in_process(document)])
def test_the_blocks_of_a_document_that_starts_no_process_run(document, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(STAGES))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of_the_user"))
    monkeypatch.chdir(tmp_path)
    exec(compile(program_of(document, tmp_path), document, "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def python(shared_processes):
    """An interpreter that orders sets alike each time."""
    with PreparedInterpreter("torch", "omegaconf", PYTHONHASHSEED="0", PYTHONPATH=PATH) as interpreter:
        yield interpreter


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if not runs_in_process(document)])
def test_the_blocks_of_a_document_run(document, python, processes, tmp_path, monkeypatch):
    variables = {
        "XDG_CACHE_HOME": str(tmp_path / "of_the_user"),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",  # examples are small: threads would wait for each other
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": PATH,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if text := program_of(document, tmp_path):
        program = tmp_path / "script.py"
        program.write_text(text)
        done = python.run(program, folder=tmp_path, timeout=300, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
    for block in blocks_of((ROOT / document).read_text()):
        if block.language in SHELLS and block.reason is None:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{document}:{block.line}\n{done.stdout}{done.stderr}"
