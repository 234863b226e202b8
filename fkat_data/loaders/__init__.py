"""The loaders, which are faces of the engine; their public names are in ``fkat_data``.

``sharded`` loads shard by shard, each opened by a ``factory``; ``resume`` and ``epoch_length`` are its own. ``data_loader`` has
torch's arguments and behaviour. It makes one of the plans here: of batches of indices (``numbered_plan``, ``drawn_plan``) or of
strands, which are copies of an iterable dataset (``strand_plan``); ``epochs_of_ranks`` and ``rank_share`` deal what is left
of an epoch out to other ranks. ``states`` reads and writes its states. Begin with ``data_loader.DataLoader``.
"""
