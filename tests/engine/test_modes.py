"""torch's modes of the caller: they show neither in the microbatch that is asked for nor in those made ahead of it."""

import contextlib
import io

import pytest
import torch
from loader_examples import make
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader
from walks import begun, both_modes


class Intercepting(TorchFunctionMode):
    """Replaces each call of torch's functions; `torch.compile` and others do the like."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} ran in the caller's mode")


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} ran in the caller's mode")


@contextlib.contextmanager
def being(value, put, otherwise):
    put(value)
    try:
        yield
    finally:
        put(otherwise)


MODES = {
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "a device for a block": lambda: torch.device("meta"),
    "a default device": lambda: being("meta", torch.set_default_device, None),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a default dtype": lambda: being(torch.float64, torch.set_default_dtype, torch.float32),
    "deterministic algorithms": lambda: being(True, torch.use_deterministic_algorithms, False),
    "a mode of functions": Intercepting,
    "a mode of operators": Dispatching,
}
in_every_mode = pytest.mark.parametrize("mode", MODES)


def flags():
    """What torch is set to, as values."""
    return {
        "inference": torch.is_inference_mode_enabled(),
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def setting():
    """The flags, and what a new tensor is."""
    return {**flags(), "new": str((torch.ones(1) @ torch.ones(1)).dtype) + str(torch.ones(1).device)}


class Rebuilt:
    """Makes a tensor where it is rebuilt; the default dtype and algorithms there are the caller's."""

    def __init__(self):
        self.tensor = torch.ones(2, dtype=torch.float32)

    def __reduce__(self):
        return Rebuilt, ()

    def to(self, device):
        return self


def samples():
    for number in range(4):
        yield {"number": torch.full((3,), float(number)), "setting": setting(), "rebuilt": Rebuilt()}


class Samples:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return list(samples())[index]


PRODUCTS = {
    "an unknown length": lambda shard: samples(),
    "a known length": lambda shard: DataLoader(Samples(), batch_size=1, collate_fn=lambda batch: batch[0]),
}


def check(microbatches):
    plain = setting()
    for number, microbatch in enumerate(microbatches):
        assert microbatch["setting"] == plain
        for tensor in (microbatch["number"], microbatch["rebuilt"].tensor):
            assert tensor.device.type == "cpu"
            assert tensor.dtype is torch.float32
            assert not tensor.is_inference()
        microbatch["number"].mul_(torch.ones(3, requires_grad=True))  # refused for what was made without gradients
        assert microbatch["number"].tolist() == [number] * 3


@both_modes
@pytest.mark.parametrize("product", PRODUCTS)
@in_every_mode
def test_a_mode_around_next_shows_in_no_microbatch(mode, product, multiprocessing, processes):
    with make(["a"], PRODUCTS[product], multiprocessing=multiprocessing) as loader:
        iterator = iter(loader)
        with MODES[mode]():
            first = next(iterator)
        rest = list(iterator)
    check([first, *rest])


@in_every_mode
def test_the_caller_is_in_its_modes_again_after_a_failure(mode):
    def failing(shard):
        raise ValueError("mine")

    def modes():
        num_of_functions = len(torch.overrides._get_current_function_mode_stack())
        return flags(), num_of_functions, torch._C._len_torch_dispatch_stack()

    loader = make(["a"], failing)
    with MODES[mode]():
        before = modes()
        with pytest.raises(ValueError, match="mine"):
            next(iter(loader))
        assert modes() == before


@pytest.mark.parametrize("mode", ["inference", "no gradients"])
def test_a_microbatch_that_moves_ahead_is_moved_in_no_mode(mode):
    with make(["a"], PRODUCTS["a known length"], device="meta") as loader:
        iterator = iter(loader)
        with MODES[mode]():
            first = next(iterator)
        moved = [microbatch["number"] for microbatch in (first, *iterator)]
    assert [(tensor.device.type, tensor.is_inference()) for tensor in moved] == [("meta", False)] * 4


@both_modes
@in_every_mode
def test_a_loader_that_is_made_and_saved_in_a_mode_resumes_in_it(mode, multiprocessing, processes):
    def made():
        return make(["a", "b"], PRODUCTS["a known length"], multiprocessing=multiprocessing)

    with MODES[mode](), made() as loader:
        begun(loader, 5)
        state = loader.state_dict()
    assert not state["all_rank_indices"][0].is_inference()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    is_intercepting = mode.startswith("a mode of")  # a number is read from its tensor in the caller's mode
    with contextlib.nullcontext() if is_intercepting else MODES[mode](), made() as resumed:
        resumed.load_state_dict(saved)
        left = list(resumed)
    assert [microbatch["number"].tolist() for microbatch in left] == [[number] * 3 for number in (1, 2, 3)]


def test_a_worker_has_the_trainers_default_dtype_and_one_thread(remote):
    def factory(shard):
        return [torch.zeros(1), torch.tensor(torch.get_num_threads())]

    with MODES["a default dtype"](), remote(["a"], factory) as loader:
        zeros, num_threads = loader
    assert zeros.dtype is torch.float64
    assert int(num_threads) == 1
