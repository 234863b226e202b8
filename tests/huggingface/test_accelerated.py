import pytest
import torch
from accelerate.state import GradientState

from fkat_data.huggingface.accelerated import accelerated, mover_to, rest_or_next, with_end


def test_each_item_comes_with_whether_it_is_the_last():
    assert [list(with_end(range(count))) for count in (0, 1, 3)] == [
        [],
        [(0, True)],
        [(0, False), (1, False), (2, True)],
    ]


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 0
        raise KeyError("the second")

    found = with_end(items())
    assert next(found) == (0, False)
    with pytest.raises(KeyError, match="the second"):
        next(found)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_empty_rest_is_followed_by_the_next_epoch_and_beginning_draws_nothing(num_workers):
    epochs = [[], [1, 2], [], [3]]

    def begin():
        torch.rand(3)
        return epochs.pop(0)

    before = torch.get_rng_state()
    assert list(rest_or_next(begin, may_be_over=True, num_workers=num_workers)) == [1, 2]
    assert list(rest_or_next(begin, may_be_over=False, num_workers=num_workers)) == []
    assert torch.equal(torch.get_rng_state(), before)


def test_accelerate_knows_the_last_batch_and_forgets_an_iteration_that_is_left():
    state = GradientState()
    batches = accelerated(with_end("ab"))
    assert [(batch, state.end_of_dataloader, state.remainder) for batch in batches] == [("a", False, 0), ("b", True, 0)]
    batches = accelerated(with_end("ab"), mover_to(torch.device("cpu")))
    next(batches)
    assert state.in_dataloader
    batches.close()
    assert not state.in_dataloader


def test_batches_are_moved_to_the_device():
    (batch,) = accelerated([({"x": torch.zeros(2)}, True)], mover_to(torch.device("meta")))
    assert batch["x"].device.type == "meta"
