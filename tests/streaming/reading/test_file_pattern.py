import re

import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.reading import FilePattern, split_location


@pytest.mark.parametrize(
    ("location", "expected"),
    {
        "s3://bucket/data": None,
        "s3://bucket/data.parquet/": None,
        "/data/*": None,
        "s3://bucket/data/*.parquet": ("s3://bucket/data", "*.parquet"),
        "s3://bucket/*/x/[ab].PARQUET": ("s3://bucket", "*/x/[ab].PARQUET"),
        "s3://bucket/c.parquet": ("s3://bucket", "c.parquet"),
        "s3://*.parquet": None,
        "https://host/a/b.parquet?key=x.y&z": ("https://host/a?key=x.y&z", "b.parquet"),
        "s3://bucket/a.tar.gz": ("s3://bucket", "a.tar.gz"),
        "/data/x.parq": ("/data", "x.parq"),
        "/x.parquet": ("/", "x.parquet"),
        "x.parquet": (".", "x.parquet"),
        "*/x.parquet": (".", "*/x.parquet"),
    }.items(),
)
def test_a_location_with_a_suffix_is_a_directory_and_a_pattern(location, expected):
    found = split_location(location)
    assert found == (None if expected is None else (expected[0], FilePattern(expected[1])))


@pytest.mark.parametrize(
    ("pattern", "prefix", "names", "others"),
    [
        ("", "", ["a.parquet", "a/b/c.PQ"], ["a.txt", "_a/b.parquet", ".a.parquet", "a/_b.parquet", "a/.b/c.parquet"]),
        ("*.parquet", "", ["a.parquet", "a.b.parquet"], ["a/b.parquet", "_a.parquet", ".parquet", "a.pq"]),
        ("d/x-*.parquet", "d/x-", ["d/x-1.parquet", "d/x-.parquet"], ["x-1.parquet", "d/e/x-1.parquet"]),
        ("**/*.parquet", "", ["a.parquet", "a/b/c.parquet"], ["_a/b.parquet", "a/_b.parquet"]),
        ("d/**/x.parquet", "d/", ["d/x.parquet", "d/e/f/x.parquet"], ["e/x.parquet", "d/xx.parquet"]),
        ("[!a].parquet", "", ["b.parquet"], ["a.parquet", "bb.parquet", "_.parquet"]),
        ("[[]a.parquet", "[a.parquet", ["[a.parquet"], ["a.parquet"]),
        ("[~&|a]b.parquet", "", ["~b.parquet", "|b.parquet", "ab.parquet"], ["b.parquet"]),
        ("[a.parquet", "", ["[a.parquet"], ["a.parquet"]),
        ("a+(b).parquet", "a+(b).parquet", ["a+(b).parquet"], ["aab.parquet"]),
        ("t.parquet", "t.parquet", ["t.parquet", "t.parquet/0.parquet"], ["t.parquet.parquet", "t.parquet/_x.parquet"]),
        ("_*.parquet", "_", ["_a.parquet"], ["a.parquet"]),
    ],
)
def test_a_pattern_matches_as_the_shells_does(pattern, prefix, names, others):
    found = FilePattern(pattern)
    assert found.prefix == prefix
    assert [name for name in [*names, *others] if found.matches(name)] == names
    assert all(re.match(re.escape(prefix), name) for name in names)


def test_a_range_that_ends_before_it_begins_is_an_error():
    with pytest.raises(ConfigurationError, match=r"remote = '\[z-a\].parquet'"):
        FilePattern("[z-a].parquet").matches("b.parquet")
