"""The loader that users iterate, and the factory that they give it."""
