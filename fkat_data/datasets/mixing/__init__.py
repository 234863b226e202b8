"""Mixing sources: which of them is drawn from at which place, and what happens when one has nothing left."""
