"""Say what an order's settings do that their user rarely means, where the reference warns."""

from fkat_data.streaming.order.epoch_order import OrderSettings
from fkat_data.streaming.order.weights import StreamShares


def caveats_of(settings: OrderSettings, shares: StreamShares, num_canonical_nodes: int) -> list[str]:
    """Return a text for each of them; the order is valid in any case.

    Args:
        settings: The settings that determine the order.
        shares: Each stream's share of an epoch.
        num_canonical_nodes: Parts of the order.
    """
    found: list[str] = []
    is_joint = settings.batching_method == "random"
    block_size = settings.block_size(num_canonical_nodes)
    block_sizes = [block_size if is_joint else int(block_size * proportion) for proportion in shares.proportion]
    if settings.shuffle and settings.shuffle_algo == "py1e":
        for stream, (sizes, size) in enumerate(zip(settings.shard_sizes, block_sizes, strict=True)):
            largest = int(sizes.max(initial=0))
            if largest > size:
                found.append(
                    f"py1e does not spread the shards of stream {stream} that are larger than its shuffle block: the "
                    f"largest has {largest:,} samples, the block {size:,} (shuffle_block_size)"
                )
    if not settings.is_even:
        parts = [shares.epoch_size] if is_joint else [count for count in shares.choose if count]
        if min(parts, default=num_canonical_nodes) < num_canonical_nodes:
            found.append(
                f"an epoch repeats samples: {min(parts):,} samples are fewer than the {num_canonical_nodes} canonical "
                "nodes (num_canonical_nodes)"
            )
    return found
