"""Random kills of workers and trainers, and whether anything was lost by them."""
