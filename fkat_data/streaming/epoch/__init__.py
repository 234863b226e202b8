"""From a state to sample numbers: which sample this rank reads next, in this world or any other."""
