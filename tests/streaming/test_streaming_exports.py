import fkat_data.streaming


def test_all_is_complete_and_the_documented_names_are_there():
    assert len(fkat_data.streaming.__all__) == len(set(fkat_data.streaming.__all__))
    assert {"CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "XSVWriter", "merge_index", "write_parallel"} <= set(
        fkat_data.streaming.__all__
    )
