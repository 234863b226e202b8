import numpy as np
import pytest
from order_vectors import VECTORS

from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import count_of, size_bytes_of


@pytest.mark.parametrize(
    ("function", "text", "expected"),
    [
        *((size_bytes_of, *row) for row in VECTORS["bytes_to_int"]),
        *((count_of, *row) for row in VECTORS["number_abbrev_to_int"]),
    ],
)
def test_sizes_and_counts_are_read_as_the_reference_does(function, text, expected):
    if isinstance(expected, int):
        assert function("size", text) == expected
    else:
        with pytest.raises(ConfigurationError, match="size"):
            function("size", text)


NEITHER = [None, True, "", "x"]


@pytest.mark.parametrize("value", [*NEITHER, "kb", "1.5", "nankb", "infgb", float("nan"), [1], "9" * 5000])
def test_what_is_no_size_is_refused(value):
    with pytest.raises(ConfigurationError, match="cache_limit"):
        size_bytes_of("cache_limit", value)


@pytest.mark.parametrize("value", [*NEITHER, "k", "64kb", float("inf")])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ConfigurationError, match="epoch_size"):
        count_of("epoch_size", value)


@pytest.mark.parametrize("value", [64, 64.0, np.int64(64), np.float32(64)], ids=repr)
def test_numbers_of_pythons_and_of_numpys_are_sizes(value):
    assert (size_bytes_of("size", value), count_of("size", value)) == (64, 64)
