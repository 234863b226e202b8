"""litdata's ``StreamingDataset`` and ``StreamingDataLoader``, with local chunks."""

from typing import Any

from stand_ins import stand_in

from robustness.source import BATCH_SIZE, NUM_SAMPLES, NUM_WORKERS, Source

stand_in("litdata")

from litdata import StreamingDataLoader, StreamingDataset, optimize  # noqa: E402 - needs the stand-ins


class Samples(StreamingDataset):
    def __init__(self, source: Source, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.source = source

    def __getitem__(self, index: Any) -> Any:
        return self.source.sample(super().__getitem__(index)["number"])


def record(number: int) -> dict[str, int]:
    return {"number": number}


def prepare(data: str) -> None:
    optimize(fn=record, inputs=list(range(NUM_SAMPLES)), output_dir=data, chunk_size=20, num_workers=1)


def loader(source: Source, data: str, **setting: Any) -> Any:
    dataset = Samples(source, data, shuffle=True)
    return StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=NUM_WORKERS, **setting)
