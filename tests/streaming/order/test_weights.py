import pytest
from order_vectors import VECTORS, name

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order import StreamWeight, shares_of


@pytest.mark.parametrize("case", VECTORS["weights"], ids=name)
def test_shares_are_the_references(case):
    weights = [StreamWeight(kind, value) for kind, value in case["streams"]]

    def make():
        return shares_of(weights, case["samples_per_stream"], case["epoch_size_arg"], case["seed"])

    if "error" in case:
        with pytest.raises(ConfigurationError):
            make()
        return
    found = make()
    assert found.epoch_size == case["epoch_size"]
    assert list(found.choose) == case["choose"]
    assert list(found.proportion) == case["proportion"]
    assert list(found.repeat) == case["repeat"]


def test_an_epochs_size_is_refused_beside_weights_that_say_it():
    with pytest.raises(ConfigurationError, match="epoch_size"):
        shares_of([StreamWeight("repeat", 2.0)], [10], 100, 0)


def test_no_proportion_at_all_is_refused():
    with pytest.raises(ConfigurationError, match="above 0"):
        shares_of([StreamWeight("proportion", 0)] * 2, [10, 10], None, 0)
