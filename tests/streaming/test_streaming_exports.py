import fkat_data.streaming


def test_all_is_complete_and_the_documented_names_are_there():
    assert len(fkat_data.streaming.__all__) == len(set(fkat_data.streaming.__all__))
    assert {"CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "XSVWriter", "merge_index", "write_parallel"} <= set(
        fkat_data.streaming.__all__
    )


def test_importing_the_package_imports_no_library_of_files_or_images(run_script):
    done = run_script(
        "import sys, fkat_data.streaming\n"
        "heavy = {'PIL', 'brotli', 'cramjam', 'fsspec', 'hydra', 'pyarrow', 'xxhash', 'zstandard'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    assert done.stdout == "[]\n"
