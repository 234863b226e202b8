"""What the README shows runs as it stands, and its links lead somewhere, also from a package index."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]


def test_the_example_resumes_on_the_next_microbatch(run_script):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in example.splitlines() if line]) == 8
    # The rest of the epoch after the state was taken: its first batch is the resumed one.
    going_on = (
        "state = loader.state_dict()\nloader.load_state_dict(state)\nfirst = next(iter(loader))\nloader.load_state_dict"
    )
    lines = run_script(example.replace("loader.load_state_dict", going_on) + "print(first)\n").stdout.splitlines()
    assert [line.split(" ")[0] for line in lines[:-2]] == ["1", "2", "3", "4", "5"]
    assert lines[-1] == lines[-2]
    numbers = [int(number) for line in lines[:-1] for number in re.findall(r"\d+", line.partition("[")[2])]
    assert len(set(numbers)) == len(numbers) == 60


def test_every_link_is_absolute_and_leads_to_a_file_of_the_repository():
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 15
    for link in links:
        assert link.startswith((f"{SOURCE}/blob/main/", f"{SOURCE}/raw/main/")), f"leads nowhere on an index: {link}"
        file, _, anchor = link.partition("/main/")[2].partition("#")
        assert (ROOT / file).exists(), link
        headings = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, link
