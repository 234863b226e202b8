import numpy as np
import pytest
import torch

from fkat_data.errors import ConfigurationError, arguments


@pytest.mark.parametrize(
    "value", [3, np.int32(3), np.uint8(3), torch.tensor(3)], ids=lambda value: type(value).__name__
)
def test_whatever_counts_as_an_integer_becomes_one(value):
    assert arguments.integer("n", value, minimum=3, maximum=3) == 3
    assert type(arguments.integer("n", value)) is int


@pytest.mark.parametrize(
    "value", [True, False, 1.0, "1", None, [1], float("nan"), np.float32(1), torch.tensor(1.0)], ids=repr
)
def test_what_is_no_integer_is_refused_by_name(value):
    with pytest.raises(ConfigurationError, match=r"n = .*: expected an integer"):
        arguments.integer("n", value)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"minimum": 3}, "an integer of at least 3"),
        ({"maximum": 1}, "an integer of at most 1"),
        ({"minimum": 3, "maximum": 4}, "an integer from 3 to 4"),
        ({"minimum": 0, "maximum": 1}, "an integer from 0 to 1"),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_range(bounds, text):
    with pytest.raises(ConfigurationError, match=f"n = 2: expected {text}"):
        arguments.integer("n", 2, **bounds)


@pytest.mark.parametrize("value", [0, 1, None, "true", "false", np.True_], ids=repr)
def test_only_true_and_false_are_booleans(value):
    with pytest.raises(ConfigurationError, match=r"flag = .*: expected true or false"):
        arguments.boolean("flag", value)
    assert [arguments.boolean("flag", known) for known in (True, False)] == [True, False]


def test_what_can_be_called_is_a_function():
    assert arguments.function("f", len) is len
    with pytest.raises(ConfigurationError, match=r"f = 5: expected a callable.*_partial_: true"):
        arguments.function("f", 5)


def test_a_choice_is_one_of_its_options():
    assert arguments.choice("mode", "skip", ("raise", "skip")) == "skip"
    for value in ("Skip", "", None, 1):
        with pytest.raises(ConfigurationError, match=r"mode = .*: expected one of 'raise', 'skip'"):
            arguments.choice("mode", value, ("raise", "skip"))


@pytest.mark.parametrize("value", [0.5, 1e9, 2, 2.0, np.int64(2), np.float32(2), np.float64(2)], ids=repr)
def test_a_positive_number_of_pythons_or_of_numpys_becomes_a_float(value):
    assert arguments.seconds("timeout_s", value) == float(value)
    assert type(arguments.positive("weight", value)) is float


@pytest.mark.parametrize("value", [0, -1, True, "2", float("inf"), float("nan"), np.float32("nan"), None, 1j], ids=repr)
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(ConfigurationError, match=r"timeout_s = .*: expected a number of seconds greater than 0"):
        arguments.seconds("timeout_s", value)
