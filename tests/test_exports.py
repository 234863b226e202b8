import fkat_data


def test_all_is_sorted_and_complete():
    assert fkat_data.__all__ == sorted(fkat_data.__all__)
    assert len(fkat_data.__all__) == len(set(fkat_data.__all__))
    for name in fkat_data.__all__:
        assert hasattr(fkat_data, name)


def test_the_documented_names_are_there():
    assert {
        "DataLoaderFactory",
        "DistributedDataParallelShardSampler",
        "FsShardSampler",
        "ShardSampler",
        "ShardedDataLoader",
        "ShuffledShardSampler",
    } <= set(fkat_data.__all__)
