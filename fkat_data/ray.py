"""Microbatches made by actors on a Ray cluster: ``workers=fkat_data.ray.Actors(...)``; needs the extra ``ray``.

Ray starts the actors, sends each microbatch number and brings the microbatch. What is next, what is lost, and what was
delivered, the loader knows. Ray retries nothing.
"""

from fkat_data.integrations.ray import Actors

__all__ = ["Actors"]
