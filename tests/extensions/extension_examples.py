"""What users may register; spawned workers import this module too, and register nothing by that."""

from fkat_data.extensions import Encoding, EncodingError


class Reversed(Encoding):
    """Text, from its end to its beginning."""

    def encode(self, value):
        if not isinstance(value, str):
            raise EncodingError("text")
        return value[::-1].encode()

    def decode(self, data):
        return bytes(data).decode()[::-1]


class Backwards:
    """The samples, from the last one to the first."""

    def __init__(self, unit_sizes, num_canonical_nodes, seed, epoch, block_size):
        self.size = int(unit_sizes.sum())

    def samples_at(self, positions):
        return self.size - 1 - positions


class Twice(Backwards):
    """Numbers of samples that do not exist."""

    def samples_at(self, positions):
        return 2 * positions


class Floats(Backwards):
    def samples_at(self, positions):
        return positions / 1


class Nothing:
    """A client of an empty store."""

    def __init__(self, url, options):
        self.url, self.options = url, options

    def listing(self, prefix, timeout_s):
        return []
