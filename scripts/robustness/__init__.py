"""The first benchmark of robustness: what loaders do when things break, each in a process of its own."""
