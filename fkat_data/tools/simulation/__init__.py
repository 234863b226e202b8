"""A streaming run played without data: what it would wait for, fetch and keep. Functions of values alone."""
