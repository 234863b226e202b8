"""Random kills of workers and trainers, and a check that nothing is lost."""
