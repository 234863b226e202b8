from pathlib import Path

import hydra

Path("configs").mkdir()
Path("configs/train.yaml").write_text(
    "loader:\n  _target_: fkat_data.ShardedDataLoader\n  seed: 7\n  shard_sampler: ['0', '100']\n"
    "  dataloader_factory:\n    _target_: fkat_data.DataLoaderFactory\n    batch_size: 10\n"
    "    dataset_generator: {_target_: stage.Numbers, _partial_: true}\n"
)
hydra.initialize_config_dir(str(Path("configs").resolve()), version_base="1.3")
# after
assert len(list(loader)) == 20
loader.close()
