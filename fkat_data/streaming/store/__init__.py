"""Files of a dataset in any store that fsspec opens: brought to an open local file, whole, under faults."""
