import os

import pytest

from fkat_data.streaming.reading.cached_source import is_linked_to, shared_file


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "to-b").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "c").symlink_to(tmp_path / "a" / "b" / "c")
    return tmp_path


@pytest.mark.parametrize(
    ("first", "names", "second", "other_names", "expected"),
    [
        ("a", ["x"], "a", ["x"], "x"),
        ("a", ["x"], "a", ["y"], None),
        ("a", ["x"], "other", ["x"], None),
        ("a", ["b/x"], "to-b", ["x"], "b/x"),
        ("to-b", ["x"], "a", ["b/x", "x"], "x"),
        ("to-b", ["y"], "a", ["b/x", "x"], None),
        ("other", ["z", "c/x"], "a/b/c", ["x"], "c/x"),
        ("other", ["missing/x"], "other", ["missing/x"], None),
        ("nowhere", ["x"], "nowhere", ["x"], None),
    ],
)
def test_names_that_lead_to_one_file_are_found_in_any_spelling(tree, first, names, second, other_names, expected):
    assert shared_file(tree / first, names, tree / second, other_names) == expected


def test_a_link_leads_to_the_only_copy_and_a_hard_link_is_another_name(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "second").symlink_to(tmp_path / "link")
    os.link(tmp_path / "file", tmp_path / "hard")
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    found = {
        name: is_linked_to(tmp_path / name, tmp_path / "file") for name in ("link", "second", "hard", "broken", "x")
    }
    assert found == {"link": True, "second": True, "hard": False, "broken": False, "x": False}
