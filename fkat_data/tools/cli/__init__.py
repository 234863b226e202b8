"""The program ``fkat-data``; needs the extra ``cli``."""
