"""Installed versions are compared with what the package asks for."""

import pytest
from packaging.specifiers import SpecifierSet

from fkat_data.tools.doctor.examine import installed_findings, judge_version
from fkat_data.tools.doctor.findings import Level, worst_of


@pytest.mark.parametrize(
    ("version", "is_required", "level"),
    [
        ("2.5", True, Level.OK),
        ("2.5.0.dev1+local", True, Level.OK),
        ("2.3", True, Level.WRONG),
        ("2.3", False, Level.ADVICE),
        (None, True, Level.WRONG),
        (None, False, None),
    ],
)
def test_a_version_is_judged(version, is_required, level):
    finding = judge_version("torch", version, SpecifierSet(">=2.4"), is_required=is_required)
    assert (None if finding is None else finding.level) is level
    if level in (Level.WRONG, Level.ADVICE):
        assert "torch>=2.4" in finding.change


def test_this_environment_is_in_order_and_names_no_tool_of_development():
    findings = installed_findings()
    subjects = [finding.subject for finding in findings]
    assert worst_of(findings) is Level.OK
    assert subjects[:2] == ["fkat_data", "python"]
    assert "torch" in subjects
    assert "pyarrow" in subjects
    assert "pytest" not in subjects
