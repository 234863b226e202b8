import fkat_data.datasets


def test_all_is_complete_and_the_documented_names_are_there():
    assert len(fkat_data.datasets.__all__) == len(set(fkat_data.datasets.__all__))
    assert all(hasattr(fkat_data.datasets, name) for name in fkat_data.datasets.__all__)
    assert {
        "BufferSortedDataset",
        "DatasetImplementingSortKeyProtocol",
        "DistributedShardedDataset",
        "PackedDataset",
        "ResumableSequentialSampler",
        "ShardIndexingMode",
        "ShardedDataset",
        "TokenBudgetBatchSampler",
        "pad_stack_1d",
    } <= set(fkat_data.datasets.__all__)
