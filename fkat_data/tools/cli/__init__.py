"""The program ``fkat-data``: its commands and what they print. Begin with ``commands``. It needs the extra ``cli``."""
