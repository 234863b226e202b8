"""What runs where the data is made: a process of its own, or the caller's own thread."""
