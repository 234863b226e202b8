"""What the README shows runs as it stands."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_example_resumes_on_the_next_microbatch(run_script):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in example.splitlines() if line]) == 20
    *delivered, resumed = run_script(example).stdout.splitlines()
    assert [line.split(" [")[0] for line in delivered] == [f"0 {step}" for step in range(1, 26)]
    numbers = [int(number) for line in [*delivered, resumed] for number in re.findall(r"\d+", line.partition("[")[2])]
    assert len(set(numbers)) == len(numbers) == 260
    assert set(numbers) <= set(range(400))
    # A whole epoch has the resumed microbatch in its 26th place.
    whole = run_script(re.sub(r"        if loader.step == 25:.*", "", example, flags=re.DOTALL)).stdout.splitlines()
    assert whole[:25] == delivered
    assert whole[25].partition("[")[2] == resumed.partition("[")[2]
