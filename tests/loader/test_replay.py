import pytest
import torch
from loader_examples import MIXED, epoch, make, plain, same_state
from own_workers import worker_pids
from walks import at_state, begun, both_modes


@both_modes
def test_the_first_microbatch_comes_over_and_over(multiprocessing):
    """Also the first after a state that was loaded; the position stays where it was."""
    whole = make()
    microbatches = begun(whole, 4)
    state = whole.state_dict()
    rest = [plain(microbatch) for microbatch in microbatches]
    for saved, expected in ((make().state_dict(), epoch(make())), (state, rest)):
        with at_state(make(multiprocessing=multiprocessing, replay=True), saved) as loader:
            for number, microbatch in enumerate(loader, 1):
                assert plain(microbatch) == expected[0]
                assert same_state(loader.state_dict(), saved)
                if number == 50:
                    break
            assert (loader.epoch, loader.statistics().delivered) == (0, 50)
            assert not worker_pids()  # the machine is the caller's alone
            assert epoch(at_state(make(), loader.state_dict())) == expected


def test_what_a_caller_takes_out_of_a_microbatch_is_there_the_next_time():
    loader = make(["a"], lambda shard: [{"x": torch.ones(3), "more": [1, {"y": torch.zeros(2)}]}], replay=True)
    microbatches = iter(loader)
    for _ in range(3):
        microbatch = next(microbatches)
        assert microbatch.pop("x").tolist() == [1, 1, 1]
        assert microbatch["more"].pop()["y"].tolist() == [0, 0]


def test_a_state_or_a_device_in_between_takes_the_microbatch_anew():
    loader = make(replay=True)
    microbatches = iter(loader)
    expected = plain(next(microbatches))
    loader.set_device("meta")
    assert next(microbatches).is_meta
    loader.set_device(None)
    assert plain(next(microbatches)) == expected
    loader.load_state_dict(loader.state_dict())
    assert plain(next(iter(loader))) == expected


def test_the_length_is_that_of_an_epoch():
    loader = make(["list-a-3"])
    epoch(loader)
    assert len(loader) == 3
    with pytest.raises(TypeError):
        len(make(MIXED, replay=True))
