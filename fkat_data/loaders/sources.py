"""The choice of a DataLoader's sample source: the one function that looks at what kind of dataset it has."""

from typing import Any

from torch.utils import data as torch_data

from fkat_data.loaders.engine_settings import check_threads
from fkat_data.loaders.index_source import IndexSource, IndexWindowSource
from fkat_data.loaders.iterable_source import CountedIterableSource, IterableSource
from fkat_data.loaders.loader_arguments import LoaderArguments
from fkat_data.loaders.sample_source import SampleSource
from fkat_data.loaders.shortest_rank import ShortestRankOfJob
from fkat_data.loaders.strand_plan import counts_all_ranks
from fkat_data.loaders.stream_sources import StreamBatchSource, StreamWindowSource
from fkat_data.loaders.window_plan import check_windows
from fkat_data.types import stream_source_of


def sample_source_of(loader: LoaderArguments, batch_sampler: object) -> SampleSource:
    """Return the sample source of a DataLoader, by its dataset and its window functions.

    Args:
        loader: The DataLoader.
        batch_sampler: The batch sampler that it was given; None: torch's class has made one, or there is none.

    Raises:
        ConfigurationError: An argument does not go with the dataset.
    """
    dataset: Any = loader.dataset
    cuts_windows = loader.has_windows
    if cuts_windows:
        check_windows(loader.window_fn, dataset, batch_sampler, loader.on_sample_error)
    if stream_source_of(dataset) is not None:
        source = StreamWindowSource(loader) if cuts_windows else StreamBatchSource(loader)
    elif isinstance(dataset, torch_data.IterableDataset):
        is_counted = loader.num_workers > 0 and counts_all_ranks(loader.dataset)
        source = (CountedIterableSource if is_counted else IterableSource)(
            ShortestRankOfJob() if cuts_windows else None
        )
    else:
        source = IndexWindowSource() if cuts_windows else IndexSource()
    if loader.num_workers:
        check_threads(loader, is_iterable=isinstance(source, IterableSource))
    return source
