"""The loaders, which are faces of the engine; their public names are in ``fkat_data``.

``sharded`` loads shard by shard, each opened by a ``factory``; ``resume`` and ``epoch_length`` are its own. ``data_loader`` has
torch's arguments and behaviour, and one ``session``, which knows where the loader stands. ``sources`` chooses where its
microbatches come from (``index_source``, ``iterable_source``, ``stream_sources``), and a source makes one of the plans here:
of batches of indices (``computed_plan``, ``sampler_plan``), of windows (``window_plan``) or of strands, which are copies of an
iterable dataset (``strand_plan``). ``loader_state`` has the one record of a loader's state, and the mapping that a program
saves; ``rank_states`` says where each rank goes on; ``reshards`` and ``rank_share`` deal what is left of an epoch out to
other ranks. Begin with ``data_loader.DataLoader``.
"""
