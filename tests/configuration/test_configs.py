"""Every file in configs/ is composed, instantiated and iterated: a new one is found by walking the tree."""

import copy
import functools
import gzip
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from walks import at_state, recorded

import fkat_data.configs
from fkat_data.configuration import instantiate, register_resolvers

REPOSITORY = Path(__file__).parents[2]
CONFIGS = Path(fkat_data.configs.__file__).parent
NAMES = sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.rglob("*.yaml"))

SEQUENCE_LENGTH = 16
NUM_SHARDS = 4
WITH_WORKERS = {"train", "loader/sharded", "loader/mixture"}
#: Of microbatches, where they are not those of the prepared rows.
LENGTHS = {"data/packed": SEQUENCE_LENGTH}
SEED = 77
SMALL = ["model.num_layers=1", "model.num_heads=2", "model.width=16"]
OF_ANY_LENGTH = {"data/bucketed", "data/budgeted"}


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch):
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")  # for the demonstration's model
    register_resolvers()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Shards of two microbatches; the first byte of a sequence is its shard's number."""
    folder = tmp_path_factory.mktemp("data")
    for shard in range(NUM_SHARDS):
        tokens = np.random.default_rng(shard).integers(0, 256, (40, SEQUENCE_LENGTH + 1), np.uint8)
        tokens[:, 0] = shard
        column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), SEQUENCE_LENGTH + 1)
        pq.write_table(pa.table({"tokens": column}), folder / f"shard-{shard:05d}.parquet", row_group_size=16)
        lines = "".join(json.dumps({"tokens": row}) + "\n" for row in tokens.tolist()).encode()
        (folder / f"shard-{shard:05d}.jsonl").write_bytes(gzip.compress(lines) if shard % 2 else lines)
    return folder


def composed(*arguments):
    # What is resolved once stays so, and the ranks of tests differ.
    return copy.deepcopy(_composed(*arguments))


@functools.cache
def _composed(data, name, *overrides):
    """Compose a run of it: a top-level file is one, a file in a group is a part of the default one."""
    group, _, option = name.rpartition("/")
    if group:
        overrides = (*(() if group == "loader" else ("loader=debug",)), f"{group}={option}", *overrides)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        settings = [f"data.uri={data}", f"data.sequence_length={SEQUENCE_LENGTH}", f"seed={SEED}"]
        settings += [] if group == "model" else SMALL
        return compose("train" if group else name, [*settings, *overrides])


def test_the_walk_finds_the_tree():
    assert {"train", "train_debug", "loader/debug", "sampler/data_parallel", "data/stdlib"} <= set(NAMES)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.with_processes if name in WITH_WORKERS else ()) for name in NAMES],
)
def test_every_configuration_gives_microbatches_that_its_model_takes(data, name):
    config = composed(data, name)
    model = instantiate(config.model)
    optimizer = instantiate(config.optimizer)(model.parameters())
    with instantiate(config.loader) as loader:
        for microbatch in islice(loader, 3):
            tokens = microbatch["tokens"]
            assert len(tokens) == config.data.factory.get("batch_size", len(tokens))
            assert tokens.shape[1] == LENGTHS.get(name, SEQUENCE_LENGTH + 1) or name in OF_ANY_LENGTH
            assert 2 <= tokens.shape[1] <= SEQUENCE_LENGTH + 1
            assert tokens.dtype == torch.uint8
            assert model(tokens[:, :-1].long()).shape == (len(tokens), tokens.shape[1] - 1, 256)
        assert loader.step == 3
    optimizer.step()


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.startswith("data/")] + ["loader/debug", "loader/mixture"]
)
def test_every_way_to_read_and_to_mix_resumes_exactly(data, name):
    in_process = ["even", "odd"] if name == "loader/mixture" else []
    overrides = [f"loader.dataloaders.{source}.multiprocessing=false" for source in in_process]

    def made():
        return instantiate(composed(data, name, *overrides).loader)

    def plain(microbatch):
        return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in microbatch.items()}

    with made() as loader:
        microbatches, states = recorded(loader, plain)
    assert len(microbatches) >= NUM_SHARDS
    for position in (1, 3, len(microbatches) - 1):
        with at_state(made(), states[position]) as loader:
            assert [plain(microbatch) for microbatch in loader] == microbatches[position:]


def test_the_debug_variant_gives_the_same_microbatches(processes, data):
    epochs = []
    for name in ("train", "train_debug"):
        with instantiate(composed(data, name).loader) as loader:
            epochs.append([microbatch["tokens"].clone() for _ in range(2) for microbatch in loader])
    assert len(epochs[0]) == 2 * NUM_SHARDS * 2
    assert all(map(torch.equal, *epochs))


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_at_the_top_feeds_every_part(data, name):
    def seeds(node):
        if isinstance(node, dict):
            yield from (value for key, value in node.items() if key == "seed")
            node = list(node.values())
        if isinstance(node, list):
            for item in node:
                yield from seeds(item)

    found = list(seeds(OmegaConf.to_container(composed(data, name), resolve=True)))
    assert len(found) >= 2
    assert set(found) == {SEED}


def test_the_ranks_of_torchrun_read_other_shards_in_each_epoch(data, monkeypatch):
    def shards_of(rank, num_epochs):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(rank))
        with instantiate(composed(data, "train_debug").loader) as loader:
            return [{microbatch["tokens"][0, 0].item() for microbatch in loader} for _ in range(num_epochs)]

    first, second = shards_of(0, 6), shards_of(1, 6)
    assert all(one | other == set(range(NUM_SHARDS)) for one, other in zip(first, second, strict=True))
    assert all(len(one) == len(other) == 2 for one, other in zip(first, second, strict=True))
    assert len({frozenset(shards) for shards in first}) > 1


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_views_of_shards_give_every_sample_to_one_rank(data, monkeypatch, world_size):
    seen = []
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        config = composed(data, "data/views", "data.factory.batch_size=1")
        with instantiate(config.loader) as loader:
            seen.extend(tuple(microbatch["tokens"][0].tolist()) for microbatch in loader)
    assert len(set(seen)) == NUM_SHARDS * 40
    assert len(seen) - len(set(seen)) < world_size * NUM_SHARDS  # padded to equally many


def test_a_users_configuration_takes_parts_of_the_package(data, tmp_path):
    page = (REPOSITORY / "docs" / "howto" / "configure.md").read_text()
    (tmp_path / "train.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("train", ["loader=debug", f"data.uri={data}"])
    with instantiate(config.loader) as loader:
        assert next(iter(loader))["tokens"].shape == (16, SEQUENCE_LENGTH + 1)
