import os

import pytest

from fkat_data.storage.file_identity import FileIdentity


@pytest.mark.parametrize(
    ("now", "is_equal", "is_rewritten", "is_rewritten_in_place"),
    [
        (FileIdentity(5, 10, 1), True, False, False),
        (FileIdentity(5, 11, 1), False, True, True),
        (FileIdentity(6, 10, 1), False, True, True),
        (FileIdentity(5, 10, 2), False, False, False),
        (FileIdentity(5, 11, 2), False, True, False),
        (FileIdentity(6, 11, 2), False, True, True),
    ],
)
def test_each_question_compares_what_it_is_about(now, is_equal, is_rewritten, is_rewritten_in_place):
    before = FileIdentity(5, 10, 1)
    assert (now == before) == is_equal
    assert now.is_rewritten_since(before) == is_rewritten
    assert now.is_rewritten_in_place_since(before) == is_rewritten_in_place


def test_a_path_and_its_descriptor_have_one_identity_until_another_file_replaces_it(tmp_path):
    path = tmp_path / "a"
    path.write_text("one")
    with path.open() as opened:
        before = FileIdentity.of_path(path)
        assert FileIdentity.of_descriptor(opened.fileno()) == before
        assert before.is_listed_as(3, str(os.stat(path).st_mtime_ns))  # noqa: PTH116 - as the code does
        (tmp_path / "b").write_text("two")
        (tmp_path / "b").replace(path)
        assert FileIdentity.of_descriptor(opened.fileno()) == before != FileIdentity.of_path(path)


def test_of_a_store_the_name_of_the_content_comes_before_the_time():
    assert FileIdentity.of_store({"size": 3, "mtime": 5.0, "ETag": '"e"'}) == FileIdentity(3, '"e"')
    assert FileIdentity.of_store({"size": 3, "mtime": 5.0}).text == "3 5.0"
    assert FileIdentity.of_store({"size": None, "ETag": ""}).text == ""
