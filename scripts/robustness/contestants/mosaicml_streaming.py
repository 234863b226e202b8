"""MosaicML's ``StreamingDataset`` and ``StreamingDataLoader``, with local shards."""

from typing import Any

from stand_ins import stand_in

from robustness.source import BATCH_SIZE, NUM_SAMPLES, NUM_WORKERS, Source

stand_in("streaming")

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402 - needs the stand-ins


class Samples(StreamingDataset):
    def __init__(self, source: Source, **options: Any) -> None:
        super().__init__(**options)
        self.source = source

    def __getitem__(self, at: Any) -> Any:
        return self.source.sample(super().__getitem__(at)["number"])


def prepare(data: str) -> None:
    with MDSWriter(out=data, columns={"number": "int"}, size_limit=512) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"number": number})


def loader(source: Source, data: str, **setting: Any) -> Any:
    dataset = Samples(source, local=data, shuffle=True, batch_size=BATCH_SIZE)
    return StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=NUM_WORKERS, **setting)
