"""What runs where the data is made: a spawned process, or the caller's own thread.

Open to other packages: ``inline``, ``items``, ``messages``, ``produce``, ``settings``, ``ship``, ``spawn``.
"""
