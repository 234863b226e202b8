import json

import pytest
from streaming_examples import write

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.streaming import Stream, StreamingDataset

SAVED = {"epoch": 0, "sample_in_epoch": 8, "num_canonical_nodes": 2, "shuffle_seed": 9176}


def make(data, **options):
    return StreamingDataset(**{"local": data, "batch_size": 4, "shuffle": True} | options)


def test_a_state_is_json_of_less_than_a_page_and_says_what_it_was_given(data):
    dataset = make(data, num_canonical_nodes=2)
    state = dataset.state_dict(8, from_beginning=False)
    assert len(json.dumps(state)) < 4096
    assert {key: state[key] for key in SAVED} == SAVED
    dataset.load_state_dict(json.loads(json.dumps(state)))
    assert dataset.state_dict(0, from_beginning=False) == state
    assert dataset.state_dict(4, from_beginning=False)["sample_in_epoch"] == 12
    assert dataset.state_dict(4, from_beginning=True)["sample_in_epoch"] == 4


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"shuffle_algo": "py1s"}, "shuffle_algo"),
        ({"shuffle_block_size": 7}, "shuffle_block_size"),
        ({"shuffle": False}, "shuffle"),
        ({"epoch_size": 20}, "epoch_size"),
        ({"sampling_method": "fixed"}, "sampling_method"),
        ({"sampling_granularity": 2}, "sampling_granularity"),
        ({"batching_method": "per_stream"}, "batching_method"),
    ],
)
def test_a_state_of_another_order_is_refused_and_the_field_named(data, changed, field):
    state = make(data).state_dict(8, from_beginning=False)
    with pytest.raises(StateMismatchError) as caught:
        make(data, **changed).load_state_dict(state)
    assert caught.value.field in (field, "global_batch_size")


def test_a_state_of_other_data_is_refused(data, tmp_path):
    state = make(data).state_dict(8, from_beginning=False)
    with pytest.raises(StateMismatchError, match="shards"):
        make(write(tmp_path / "other", 41)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="shards"):
        make(None, streams=[Stream(local=data, repeat=1.0)]).load_state_dict(state)


def test_what_decides_on_no_order_may_change(data):
    state = make(data).state_dict(8, from_beginning=False)
    make(data, batch_size=8, num_canonical_nodes=4, shuffle_seed=3, predownload=7).load_state_dict(state)


def test_mixed_by_batches_the_global_batch_may_not_change(data):
    state = make(data, batching_method="per_stream").state_dict(8, from_beginning=False)
    with pytest.raises(StateMismatchError, match="global_batch_size"):
        make(data, batching_method="per_stream", batch_size=8).load_state_dict(state)


@pytest.mark.parametrize("field", list(SAVED))
@pytest.mark.parametrize("value", ["<missing>", "1", -1, 1.5, None])
def test_a_state_that_is_none_is_refused_and_the_field_named(data, field, value):
    state = SAVED | {field: value}
    if value == "<missing>":
        del state[field]
    dataset = make(data)
    with pytest.raises(StateMismatchError) as caught:
        dataset.load_state_dict(state)
    assert caught.value.field == field
    # And the dataset is as it was.
    assert dataset.state_dict(0, from_beginning=False)["sample_in_epoch"] == 0


@pytest.mark.parametrize("state", [None, [], "x", {**SAVED, "fingerprint": 3}, {**SAVED, "fingerprint": {}}])
def test_what_is_no_state_is_refused(data, state):
    with pytest.raises(StateMismatchError):
        make(data).load_state_dict(state)


def test_a_resume_point_beyond_the_epoch_is_refused(data):
    with pytest.raises(ConfigurationError, match="sample_in_epoch"):
        make(data).load_state_dict(SAVED | {"sample_in_epoch": 1000})
    with pytest.raises(ConfigurationError, match="num_samples"):
        make(data).state_dict(-1, from_beginning=False)
