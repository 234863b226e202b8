"""What the loader shows of itself: counts, times, named ranges."""
