"""Members are grouped into samples as webdataset does, and what it would group wrongly is refused."""

import logging

import pytest
from archive_examples import archive, index

from fkat_data.errors import ConfigurationError


def named(*names):
    return index(archive([(name, name.encode()) for name in names]))


def test_keys_end_at_the_first_dot_of_the_file_name_and_extensions_are_lower_case():
    found = named("a.b/c.JPG", "a.b/c.seg.png", "./d.jpg", "e.txt")
    assert found.keys == ["a.b/c", "./d", "e"]
    assert found.columns == ("jpg", "seg.png", "txt")
    assert (found.starts >= 0).tolist() == [[True, True, False], [True, False, False], [False, False, True]]
    assert found.sizes.tolist() == [[9, 13, 0], [7, 0, 0], [0, 0, 5]]
    assert found.size_bytes > 100
    assert named().keys == []


def test_what_has_no_key_or_no_extension_is_left_out_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert named("README", ".hidden.txt", "a/._b.jpg", "__meta__.json", "c.", "d.txt").keys == ["d"]
    assert "5 files are no members of a sample, such as README, .hidden.txt, a/._b.jpg" in caplog.text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["a.txt", "b.txt", "a.cls"],
            "member 'a.cls' at byte 2,048 is of the sample 'a', and other members stand between",
        ),
        (
            ["a.txt", "a.txt"],
            "member 'a.txt' at byte 1,024 is the second one of the sample 'a' with the extension 'txt'",
        ),
        (["a.txt", "a.TXT"], "the second one of the sample 'a' with the extension 'txt'"),
        ([f"a.{number}" for number in range(300)], "at most 256 extensions; .*: the key ends at the first dot"),
    ],
)
def test_what_is_no_group_is_refused(names, message):
    with pytest.raises(ConfigurationError, match=message):
        named(*names)


def test_extensions_cannot_pass_for_the_key():
    with pytest.raises(ConfigurationError, match="extension '__key__'"):
        named("a.__key__")
