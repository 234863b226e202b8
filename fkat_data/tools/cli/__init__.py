"""The program ``fkat-data``: its commands and what they print. It needs the extra ``cli``."""
