"""From a saved state to sample ids: the samples that a rank reads next, for any number of ranks. Internal."""
