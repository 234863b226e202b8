"""A directory for a cache is judged by its file system and its room."""

from pathlib import Path

import psutil
import pytest

from fkat_data.tools.doctor import examine as storage
from fkat_data.tools.doctor.examine import storage_findings
from fkat_data.tools.doctor.findings import Level, worst_of


def test_a_directory_that_does_not_exist_yet_is_judged_by_the_one_above_it(tmp_path):
    findings = storage_findings(tmp_path / "not" / "yet", 1000)
    assert "the run keeps at most 1e+03 B" in findings[1].found or "1000 B" in findings[1].found
    assert worst_of(findings) in (Level.OK, Level.ADVICE)
    assert not (tmp_path / "not").exists()


def test_a_run_that_does_not_fit_is_wrong(tmp_path):
    findings = storage_findings(tmp_path, 2 * psutil.disk_usage(str(tmp_path)).total)
    assert worst_of(findings) is Level.WRONG
    assert "cache_limit" in findings[-1].change


def test_a_file_is_no_place(tmp_path):
    (tmp_path / "file").touch()
    assert worst_of(storage_findings(tmp_path / "file")) is Level.WRONG


@pytest.mark.parametrize(
    ("kind", "words"), [(0x6969, "may share (0x6969)"), (0x01021994, "in memory (tmpfs)"), (0xEF53, "alone")]
)
def test_the_kind_of_the_file_system_is_judged(tmp_path, monkeypatch, kind, words):
    monkeypatch.setattr(storage, "file_system_of", lambda path: kind if path == tmp_path else 0)
    assert words in storage_findings(Path(tmp_path))[0].found
