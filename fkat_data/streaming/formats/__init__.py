"""The formats of datasets on disk: index, shards, encodings, compression and hashes. Readers trust no file."""
