"""Hosted CI runs every lane and every version, and what the project says of versions and extras agrees."""

import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from selection import LANES

import fkat_data

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def steps_of(job):
    return job.get("steps", [])


def commands_of(job):
    for step in steps_of(job):
        yield from map(shlex.split, step["run"].split("&&") if "run" in step else [])


def test_every_lane_and_every_version_is_run():
    jobs = WORKFLOWS["test.yml"]["jobs"]
    lanes = [" ".join(command) for job in jobs.values() for command in commands_of(job)]
    ours = {"scripts/test", *(f"scripts/test --{lane}" for lane in LANES if lane != "default")}
    assert {*ours, "scripts/check", "scripts/site build"} <= set(lanes)
    rows = jobs["default"]["strategy"]["matrix"]["include"]
    classified = {name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"] if ":: 3." in name}
    run = {row["python"] for row in rows}
    assert classified <= run  # hosted CI tries a Python before the package says that it works there
    oldest = next(text for text in PROJECT["project"]["dependencies"] if text.startswith("torch")).removeprefix(
        "torch>="
    )
    assert f"=={oldest}.*" in {row["torch"] for row in rows}
    pinned = re.search(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert f">={pinned}" in {row["torch"] for row in rows}
    wheel = jobs["wheel"]["strategy"]["matrix"]["include"]
    assert [(row["python"], row["torch"]) for row in wheel] == [
        (min(run, key=version), f"=={oldest}.*"),
        (max(run, key=version), f">={pinned}"),
    ]


def version(text):
    return tuple(map(int, text.split(".")))


@pytest.mark.skipif(not (ROOT / "fkat_data").exists(), reason="the package was installed from a wheel")
def test_the_version_is_the_same_everywhere():
    check = runpy.run_path(str(ROOT / "scripts" / "version_check.py"))
    assert set(check["versions"]().values()) == {fkat_data.__version__}
    check["main"](f"v{fkat_data.__version__}")
    with pytest.raises(SystemExit, match=r"the tag is v9, but fkat_data/__init__\.py has"):
        check["main"]("v9")


def test_what_only_work_on_the_library_needs_is_no_extra():
    groups = PROJECT["dependency-groups"]
    assert {"check", "demo", "docs", "test"} <= set(groups)
    extras = PROJECT["project"]["optional-dependencies"]
    assert not set(groups) & set(extras)
    named = {name for line in [*groups["test"], *groups["demo"]] if isinstance(line, str) for name in own_extras(line)}
    assert named <= set(extras)


def own_extras(requirement):
    match = re.fullmatch(r"fkat_data\[([\w,]+)\]", requirement)
    return match[1].split(",") if match else []
