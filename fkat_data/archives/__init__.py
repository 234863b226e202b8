"""Tar archives of samples, as webdataset writes them: their members, their samples and the values. Trusts no archive."""
