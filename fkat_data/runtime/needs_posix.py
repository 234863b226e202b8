"""Refuses Windows in one line: what imports this module needs locks of files, maps and forks as Linux and macOS have them."""

import sys

if sys.platform == "win32":
    raise ImportError(
        "fkat_data.streaming needs Linux or macOS. On Windows, ShardedDataLoader(..., workers='threads') works, "
        "with fkat_data.datasets and fkat_data.samplers"
    )
