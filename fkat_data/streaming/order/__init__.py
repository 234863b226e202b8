"""The order of an epoch's samples, as pure functions: they open no file and read no environment."""
