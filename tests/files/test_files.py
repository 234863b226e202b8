import os

import pytest

from fkat_data.files.stored import is_same_path


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("a", "b/../a", True),
        ("a", "link", True),
        ("a/new/er", "link/new/er", True),
        ("a/new/er", "link/new/old", False),
        ("a/new", "b/new", False),
        ("a", "a/b", False),
        ("loop", "a", False),
        ("nowhere", "nowhere", True),
    ],
)
def test_two_paths_are_one_location_whatever_their_spelling(tmp_path, monkeypatch, first, second, is_same):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)
    for one, other in ((tmp_path / first, tmp_path / second), (tmp_path / first, type(tmp_path)(second))):
        assert is_same_path(one, other) is is_same
        assert is_same_path(other, one) is is_same


def test_hard_links_are_one_file(tmp_path):
    (tmp_path / "a").write_text("x")
    os.link(tmp_path / "a", tmp_path / "b")
    assert is_same_path(tmp_path / "a", tmp_path / "b")
