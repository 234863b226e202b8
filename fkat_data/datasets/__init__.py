"""Datasets and samplers, for a DataLoaderFactory or for any DataLoader.

Each name is imported on first use, so that importing the package does not import pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fkat_data.datasets.buffer_sorted import BufferSortedDataset, DatasetImplementingSortKeyProtocol
    from fkat_data.datasets.distributed_sharded import DistributedShardedDataset
    from fkat_data.datasets.equal_cost import attention_cost
    from fkat_data.datasets.json_lines import IterableJsonDataset, JsonDataset
    from fkat_data.datasets.lengths import count_parallel, read_lengths, write_lengths
    from fkat_data.datasets.packed import PackedDataset
    from fkat_data.datasets.packed_rows import Fragment, collate_packed
    from fkat_data.datasets.padding import PaddingCollate, PaddingSide1D, pad_stack_1d
    from fkat_data.datasets.parquet import IterableParquetDataset, ParquetDataset
    from fkat_data.datasets.rank_loads import PlanReport, plan_report
    from fkat_data.datasets.resumable import ResumableSequentialSampler
    from fkat_data.datasets.rows import Filter, Pack
    from fkat_data.datasets.tar import TarDataset
    from fkat_data.datasets.token_budget import TokenBudgetBatchSampler
    from fkat_data.datasets.token_files import TokenDocuments, TokenWindows
    from fkat_data.datasets.views import (
        DatasetChain,
        DictDataset,
        IterableMapDataset,
        MapDataset,
        ShardedDataset,
        ShardIndexingMode,
    )

__all__ = [
    "BufferSortedDataset",
    "DatasetChain",
    "DatasetImplementingSortKeyProtocol",
    "DictDataset",
    "DistributedShardedDataset",
    "Filter",
    "Fragment",
    "IterableJsonDataset",
    "IterableMapDataset",
    "IterableParquetDataset",
    "JsonDataset",
    "MapDataset",
    "Pack",
    "PackedDataset",
    "PaddingCollate",
    "PaddingSide1D",
    "ParquetDataset",
    "PlanReport",
    "ResumableSequentialSampler",
    "ShardIndexingMode",
    "ShardedDataset",
    "TarDataset",
    "TokenBudgetBatchSampler",
    "TokenDocuments",
    "TokenWindows",
    "attention_cost",
    "collate_packed",
    "count_parallel",
    "pad_stack_1d",
    "plan_report",
    "read_lengths",
    "write_lengths",
]

#: name -> its module in this package
_MODULES = {
    **dict.fromkeys(("BufferSortedDataset", "DatasetImplementingSortKeyProtocol"), "buffer_sorted"),
    "DistributedShardedDataset": "distributed_sharded",
    "attention_cost": "equal_cost",
    **dict.fromkeys(("IterableJsonDataset", "JsonDataset"), "json_lines"),
    **dict.fromkeys(("count_parallel", "read_lengths", "write_lengths"), "lengths"),
    "PackedDataset": "packed",
    **dict.fromkeys(("Fragment", "collate_packed"), "packed_rows"),
    **dict.fromkeys(("PaddingCollate", "PaddingSide1D", "pad_stack_1d"), "padding"),
    **dict.fromkeys(("IterableParquetDataset", "ParquetDataset"), "parquet"),
    **dict.fromkeys(("PlanReport", "plan_report"), "rank_loads"),
    "ResumableSequentialSampler": "resumable",
    **dict.fromkeys(("Filter", "Pack"), "rows"),
    "TarDataset": "tar",
    "TokenBudgetBatchSampler": "token_budget",
    **dict.fromkeys(("TokenDocuments", "TokenWindows"), "token_files"),
    **dict.fromkeys(
        ("DatasetChain", "DictDataset", "IterableMapDataset", "MapDataset", "ShardIndexingMode", "ShardedDataset"),
        "views",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
