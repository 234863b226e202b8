"""Lightning's callbacks, data modules and the feed of its loop: behind ``fkat_data.lightning``."""
