# in process
# after
assert state["epoch"] in (0, 1)
assert {"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes"} <= set(state)
