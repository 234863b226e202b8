import torch
from stage import ShardedDataLoader, made

loader = ShardedDataLoader(...)
meter_provider = None


def train(loader):
    for _ in loader:
        pass


try:
    import opentelemetry.metrics
except ImportError:
    import fkat_data.export

    fkat_data.export.export_to_open_telemetry = lambda loaders, meter_provider: None
# after
from pathlib import Path

assert 'loader="train",rank="0",run="baseline"' in Path("run.prom").read_text()
for loader in made:
    loader.close()
