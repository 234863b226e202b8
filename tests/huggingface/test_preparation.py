"""Loaders under an ``Accelerator``: each checkpoint of two epochs resumes to the same data and weights."""

import copy
import weakref
from functools import partial

import accelerate.data_loader
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from huggingface_examples import (
    BATCH_SIZE,
    NUM_TOKENS,
    EndlessLookingRows,
    OwnIteration,
    Rows,
    data_loader,
    distributed,
    iterable,
    numbers,
    sharded,
    streaming,
    write_streams,
)

from fkat_data import ConfigurationError, DataLoader, StateMismatchError
from fkat_data.huggingface import prepare
from fkat_data.mixing import DictDataLoader, Weighted

ACCUMULATED = 3
NUM_EPOCHS = 2


@pytest.fixture
def folder(tmp_path):
    write_streams(tmp_path / "streams")
    return tmp_path / "streams"


def by_accelerate(accelerator, *objects):
    return accelerator.prepare(*objects)


#: What makes the loader of a folder, and what prepares it.
KINDS = {
    "sharded": (lambda folder: sharded(), prepare),
    "sharded, no length": (lambda folder: sharded(EndlessLookingRows), prepare),
    "DataLoader": (lambda folder: data_loader(), prepare),
    "DataLoader by accelerate": (lambda folder: data_loader(), by_accelerate),
    "DataLoader, sampler of ranks": (lambda folder: distributed(), prepare),
    "DataLoader, sampler of ranks, by accelerate": (lambda folder: distributed(), by_accelerate),
    "DataLoader, iterable, by accelerate": (lambda folder: iterable(), by_accelerate),
    "streaming": (streaming, prepare),
    "streaming by accelerate": (streaming, by_accelerate),
    "streaming, own iteration": (partial(streaming, kind=OwnIteration), prepare),
    "streaming, own iteration, by accelerate": (partial(streaming, kind=OwnIteration), by_accelerate),
}


class Run:
    """A training loop as accelerate's documentation writes it."""

    def __init__(self, make_loader, prepared_by):
        torch.manual_seed(0)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
        model = torch.nn.Sequential(torch.nn.Embedding(NUM_TOKENS, 2), torch.nn.Dropout(), torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        self.model, self.optimizer, self.loader, self.schedule = prepared_by(
            self.accelerator, model, optimizer, make_loader, schedule
        )
        self.records = []

    def go_on(self, epochs, after_each=lambda epoch, step: None, first=None):
        for epoch in epochs:
            for step, microbatch in enumerate(self.loader if first is None else first):
                with self.accelerator.accumulate(self.model):
                    loss = self.model(microbatch["input_ids"]).square().mean()
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.schedule.step()
                    self.optimizer.zero_grad()
                is_updated = self.accelerator.sync_gradients
                weights = torch.nn.utils.parameters_to_vector(self.model.parameters()).tolist() if is_updated else None
                self.records.append((epoch, numbers(microbatch), weights))
                after_each(epoch, step)
            first = None
        return self.records


@pytest.mark.parametrize("kind", KINDS)
def test_every_checkpoint_resumes_to_the_same_data_and_weights(kind, folder, tmp_path, some):
    make, prepared_by = KINDS[kind]
    run = Run(make(folder), prepared_by)
    places = []

    def save(epoch, step):
        run.accelerator.save_state(tmp_path / f"{len(places)}")
        places.append((epoch, step + 1, run.accelerator.sync_gradients))

    expected = run.go_on(range(NUM_EPOCHS), save)
    for epoch in range(NUM_EPOCHS):
        delivered = [number for at, tokens, _ in expected if at == epoch for number in tokens[::3]]
        assert sorted(delivered) == list(range(NUM_TOKENS))
    num_batches = len(expected) // NUM_EPOCHS
    # The last microbatch of an epoch ends an accumulation.
    assert [updated for _, _, updated in places[:num_batches]] == [
        (step + 1) % ACCUMULATED == 0 or step + 1 == num_batches for step in range(num_batches)
    ]
    for index, (epoch, step, is_updated) in some(enumerate(places)):
        resumed = Run(make(folder), prepared_by)
        resumed.accelerator.load_state(tmp_path / f"{index}")
        is_over = step == num_batches
        first = None
        if prepared_by is prepare and index % 2:
            first = resumed.accelerator.skip_first_batches(resumed.loader, 0 if is_over else step)
        Rows.loaded = 0
        found = resumed.go_on(range(epoch + is_over, NUM_EPOCHS), first=first)
        rest = expected[index + 1 :]
        if kind == "sharded":
            assert Rows.loaded == sum(len(tokens) // 3 for _, tokens, _ in rest)
        # Gradients are in no checkpoint: where some were accumulated, only the data are the same.
        assert [record[: 2 + is_updated] for record in found] == [record[: 2 + is_updated] for record in rest]
        assert len(found) == len(rest)


def test_the_attributes_that_accelerate_reads_of_a_loader_that_it_leaves_alone(folder):
    """`_is_accelerate_prepared` is private to accelerate: where it is renamed, this fails."""
    accelerator = Accelerator(cpu=True)
    own, others = streaming(folder), torch.utils.data.DataLoader(range(4))
    for loader in (own, data_loader()):
        assert accelerator.prepare(loader) is loader
    loader = data_loader()
    assert accelerator.prepare_data_loader(loader) is loader
    assert accelerator.prepare(others) is not others
    assert accelerator.prepare_data_loader(own) is own
    face = prepare(accelerator, sharded())
    assert accelerator.prepare(face) is face


def test_what_accelerate_makes_of_a_data_loaders_parts_is_refused(folder):
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(data_loader())
    for refused in (loader, data_loader(), streaming(folder)):
        with pytest.raises(ConfigurationError, match=r"skip_first_batches.*the loader continues"):
            accelerator.skip_first_batches(refused, 3)
    with pytest.raises(ConfigurationError, match="dispatch_batches"):
        Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True)).prepare(data_loader())
    assert loader.pin_memory_device == ""  # for others than accelerate


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "seed": 3}, {"sampler": [3, 1, 4, 5, 9]}])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_accelerates_function_deals_a_loader_out_as_the_loader_does(options, num_ranks, caplog):
    delivered = [[], []]
    for rank in range(num_ranks):
        dealt = DataLoader(range(10), 2, collate_fn=list, **options)
        dealt.deal_out(num_ranks, rank)
        torch.manual_seed(5)
        given = DataLoader(range(10), 2, collate_fn=list, **options)
        found = prepare_data_loader(given, num_processes=num_ranks, process_index=rank)
        for samples in delivered:
            batches = list(found)
            if options != {"shuffle": True}:  # of a seed that is drawn
                assert batches == list(dealt)
            samples += [number for batch in batches for number in batch]
        assert f"accelerator.prepare(loader) keeps all of them, and loader.deal_out({num_ranks}, {rank})" in caplog.text
    assert [set(samples) for samples in delivered] == [set(options.get("sampler", range(10)))] * 2
    assert (delivered[0] != delivered[1]) == ("shuffle" in options)


def test_accelerates_function_takes_iterable_datasets(folder):
    samples = [
        list(prepare_data_loader(DataLoader(Told(), 2, collate_fn=list), num_processes=2, process_index=rank))
        for rank in range(2)
    ]
    assert samples == [[[0, 1], [4, 5]], [[2, 3], [0, 1]]]
    one = prepare_data_loader(streaming(folder))
    assert sorted(number for microbatch in one for number in numbers(microbatch)[::3]) == list(range(NUM_TOKENS))


def test_accelerates_function_refuses_what_would_lose_or_repeat_samples(folder):
    dealt = DataLoader(range(10))
    dealt.deal_out(2, 0)
    begun = data_loader(seed=1)
    next(iter(begun))
    loaded = data_loader(seed=1)
    loaded.load_state_dict(begun.state_dict())
    for refused, num_ranks in (
        (distributed(), 2),
        (DataLoader(Told(), dp_rank=0), 2),
        (streaming(folder), 2),
        (dealt, 1),
        (loaded, 1),
    ):
        with pytest.raises(ConfigurationError, match=r"prepare_data_loader.*accelerator\.prepare\(loader\)"):
            prepare_data_loader(refused, num_processes=num_ranks, process_index=0)


def test_a_loader_of_accelerates_without_a_state_is_stepped_over(monkeypatch):
    """As where torch's name for the class is this one's before accelerate is imported."""
    monkeypatch.setattr(accelerate.data_loader, "DataLoader", DataLoader)
    loader = prepare_data_loader(DataLoader(range(16), 4))
    assert isinstance(loader.base_dataloader, DataLoader)
    for _ in range(2):
        assert [batch.tolist()[0] for batch in skip_first_batches(loader, 2)] == [8, 12]
    loader.use_stateful_dataloader = True
    with pytest.raises(ConfigurationError, match=r"^skip_first_batches"):
        skip_first_batches(loader, 2)


class Following(torch.utils.data.BatchSampler):
    """Its order is of its epoch, with a generator that it seeds."""

    def __init__(self):
        super().__init__(range(6), 2, drop_last=False)
        self.generator = torch.Generator()
        self.epoch = 0

    def __iter__(self):
        self.generator.manual_seed(self.epoch)
        return iter(torch.randperm(6, generator=self.generator).view(3, 2).tolist())

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_a_prepared_loader_passes_an_epoch_on():
    first = Accelerator(cpu=True).prepare(DataLoader(range(6), batch_sampler=Following(), collate_fn=list))
    epochs = [list(first) for _ in range(3)]
    for options in ({"batch_sampler": Following()}, {"batch_size": 2}):
        loader = Accelerator(cpu=True).prepare(DataLoader(range(6), collate_fn=list, **options))
        loader.set_epoch(1)
        found = list(loader)
        assert loader.epoch == 2
        assert found == (epochs[1] if "batch_sampler" in options else [[0, 1], [2, 3], [4, 5]])


def test_a_prepared_loader_has_accelerates_state_and_dies_with_its_last_name():
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare_data_loader(DataLoader(range(16), 4))
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    assert loader.gradient_state.in_dataloader
    references = weakref.ref(accelerator), weakref.ref(loader)
    del accelerator, loader, iterator
    assert [reference() for reference in references] == [None, None]
    assert not hasattr(DataLoader(range(3)), "gradient_state")


def test_a_loader_that_accelerate_has_is_faced_like_any_other():
    accelerator = Accelerator(cpu=True)
    face = prepare(accelerator, accelerator.prepare(data_loader()))
    assert [numbers(microbatch) for microbatch in face] == [numbers(microbatch) for microbatch in data_loader()]


def test_a_loader_that_is_prepared_again_is_saved_once(tmp_path):
    accelerator = Accelerator(cpu=True)
    prepare(accelerator, data_loader(num_workers=0))  # gone, as after accelerator.free_memory()
    loader = sharded()
    face = prepare(accelerator, loader)
    assert prepare(accelerator, face) is face
    assert prepare(accelerator, loader) is face
    next(iter(face))
    accelerator.save_state(tmp_path)
    other = Accelerator(cpu=True)
    resumed = prepare(other, sharded())
    other.load_state(tmp_path)
    assert resumed.step == 1
    rest = iter(face)
    del face, resumed
    next(rest)
    accelerator.save_state(tmp_path / "later")  # an iterator keeps its place


class Told(torch.utils.data.IterableDataset):
    """Its epoch decides on what it yields."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (100 * self.epoch + number for number in range(6))


@pytest.mark.parametrize("prepared_by", [prepare, by_accelerate])
def test_a_dataset_is_told_its_epoch_after_a_resume_too(prepared_by):
    def make():
        return prepared_by(Accelerator(cpu=True), DataLoader(Told(), 3, seed=1))

    loader = make()
    states, delivered = [], []
    for _ in range(2):
        for microbatch in loader:
            delivered.append(microbatch.tolist())
            states.append(loader.state_dict())
    assert delivered == [[0, 1, 2], [3, 4, 5], [100, 101, 102], [103, 104, 105]]
    for index, state in enumerate(states[:3], 1):
        resumed = make()
        resumed.load_state_dict(state)
        found = []
        while len(found) < 4 - index:
            found += [microbatch.tolist() for microbatch in resumed]
        assert found == delivered[index:]


def test_a_copy_of_a_prepared_loader_has_a_position_of_its_own():
    loader = Accelerator(cpu=True).prepare(data_loader())
    rest = iter(loader)
    next(rest)
    copied = copy.copy(loader)
    next(rest)
    list(copied)
    assert (loader.epoch, loader.step, copied.epoch) == (0, 2, 1)
    assert len(list(rest)) == NUM_TOKENS // BATCH_SIZE - 2


def test_a_checkpoint_without_a_loaders_position_is_named(folder, tmp_path, caplog):
    Accelerator(cpu=True).save_state(tmp_path)
    for make in (data_loader, partial(streaming, folder)):
        accelerator = Accelerator(cpu=True)
        accelerator.prepare(torch.utils.data.DataLoader(range(3)), make())
        caplog.clear()
        accelerator.load_state(tmp_path)
        (line,) = caplog.messages
        assert "has no dl_state_dict_1.bin with the position of the " in line


def test_gather_for_metrics_gives_every_sample(folder):
    accelerator = Accelerator(cpu=True)
    for loader in (prepare(accelerator, sharded()), accelerator.prepare(streaming(folder))):
        gathered = [accelerator.gather_for_metrics(microbatch["input_ids"])[:, 0] for microbatch in loader]
        assert sorted(torch.cat(gathered).tolist()) == list(range(NUM_TOKENS))


def test_an_epoch_that_is_left_early_has_the_state_of_what_was_received(folder):
    for make in (sharded, partial(streaming, folder)):
        accelerator = Accelerator(cpu=True)
        loader = prepare(accelerator, make())
        for _ in loader:
            if loader.step == 4:
                break
        assert not accelerator.gradient_state.in_dataloader
        other = prepare(accelerator, make())
        other.load_state_dict(loader.state_dict())
        expected = [numbers(microbatch) for microbatch in make()]
        assert [numbers(microbatch) for microbatch in other] == expected[4:]


def test_an_error_comes_after_the_microbatches_before_it(monkeypatch):
    loader = prepare(Accelerator(cpu=True), sharded())
    made = Rows.__getitem__

    def failing(self, index):
        if Rows.loaded == 2 * BATCH_SIZE:
            raise KeyError("the third microbatch")
        return made(self, index)

    Rows.loaded = 0
    monkeypatch.setattr(Rows, "__getitem__", failing)
    received = []
    with pytest.raises(KeyError, match="the third microbatch"):
        received.extend(loader)
    monkeypatch.undo()
    assert [numbers(microbatch) for microbatch in received] == [
        numbers(microbatch) for _, microbatch in zip(range(loader.step), sharded(), strict=False)
    ]


def test_a_state_of_something_else_is_refused():
    loader = prepare(Accelerator(cpu=True), sharded())
    state = loader.state_dict()
    for wrong in (None, {}, {"version": 1, "step": 0}, loader.loader.state_dict(), state | {"version": 99}):
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(wrong)


def test_torch_loaders_and_the_order_of_results_are_as_for_accelerate():
    model = torch.nn.Linear(1, 1)
    results = prepare(Accelerator(cpu=True), torch.utils.data.DataLoader(range(4)), model, sharded())
    assert [type(result).__name__ for result in results] == ["DataLoaderShard", "Linear", "AccelerateDataLoader"]


def test_a_missing_accelerate_is_one_clear_line(run_script):
    text = "import sys\nsys.modules['accelerate'] = None\nimport fkat_data.huggingface"
    done = run_script(text, check=False)
    assert done.stderr.strip().endswith(
        "ImportError: fkat_data.huggingface needs accelerate: pip install 'accelerate>=1.15'"
    )


@pytest.mark.parametrize("make", [sharded, lambda **how: DataLoader(range(6), 2, **how)])
def test_a_loader_whose_microbatches_the_caller_commits_is_refused(make):
    with pytest.raises(ConfigurationError, match=r"commit.*accelerate"):
        prepare(Accelerator(cpu=True), make(commit="manual"))


def test_accelerates_own_loop_refuses_tickets_too():
    loader = Accelerator(cpu=True).prepare(DataLoader(range(6), 2, commit="manual"))
    with pytest.raises(ConfigurationError, match=r"commit.*accelerate"):
        iter(loader)


def test_weights_that_are_set_behind_what_was_taken_ahead_are_in_the_state():
    def prepared():
        sources = {
            name: DataLoader(range(place, place + 8), 1, shuffle=True, seed=1) for place, name in enumerate("ab")
        }
        return prepare(Accelerator(cpu=True), DictDataLoader(sources, Weighted({"a": 1, "b": 1}, seed=2), key=None))

    def trained(loader, first):
        for step, (name, batch) in enumerate(loader, first):
            if step in changes:
                loader.loader.set_weights(changes[step])
            yield (name, int(batch)), loader.state_dict()

    changes = {2: {"a": 1, "b": 9}, 3: {"a": 9, "b": 1}}
    found, states = zip(*trained(prepared(), 0), strict=True)
    for step in (0, 1, 2, 3, 4, 9):
        resumed = prepared()
        resumed.load_state_dict(states[step])
        assert tuple(each for each, _ in trained(resumed, step + 1)) == found[step + 1 :], step
