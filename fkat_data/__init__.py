"""fkat_data feeds training loops: sharded, prefetched through shared memory, exact after a resume."""
