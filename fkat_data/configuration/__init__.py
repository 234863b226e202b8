"""The Hydra side: resolvers for composed configurations."""
