"""The dataset and functions that the workers of a DataLoader have, and whether the program's have changed since."""

import logging
import time

from fkat_data.loaders.engine_settings import forks_program
from fkat_data.loaders.loader_arguments import LoaderArguments
from fkat_data.loaders.sample_source import SampleSource
from fkat_data.runtime.interruption import genuine
from fkat_data.transport.definitions import digest_of_shipment, largest_part

_logger = logging.getLogger(__name__)
#: Seconds that an epoch may begin later because its dataset is compared with the workers'.
_LONG_LOOK_S = 0.2


class LoaderShipment:
    """The dataset and the functions that workers have.

    Args:
        keeps_workers: Whether workers stay from epoch to epoch, whatever changes here; None: unless it has changed.
    """

    def __init__(self, keeps_workers: bool | None) -> None:
        self.keeps_workers = keeps_workers
        self._has_warned: bool = False

    def _stays(self, loader: LoaderArguments) -> bool | None:
        """Return whether workers stay from epoch to epoch; None: they do unless what was shipped to them has changed."""
        if self.keeps_workers is None and not loader.persistent_workers and forks_program(loader):
            return False  # nothing is shipped that could be compared
        return self.keeps_workers

    def changed(self, loader: LoaderArguments, source: SampleSource, shipped: bytes) -> bytes | None:
        """Return the digest of what new workers are to get before the next epoch; None: the present ones make it.

        Args:
            loader: The loader.
            source: Its sample source.
            shipped: The digest of what the present workers have.
        """
        stays = self._stays(loader)
        if stays or not loader.num_workers:
            return None
        if stays is False:
            return b""
        try:
            digest = self.digest(loader, source)
        except genuine(Exception) as error:
            _logger.warning(
                "workers keep their copy of the dataset, because the present one cannot be sent to them: %s", error
            )
            return None
        return None if digest == shipped else digest

    def digest(self, loader: LoaderArguments, source: SampleSource) -> bytes:
        """Return the digest of what workers get now; empty where nothing is compared.

        Raises:
            Exception: It cannot be sent.
        """
        if self._stays(loader) is not None or not loader.num_workers:
            return b""
        if loader.workers == "threads" and not source.is_shipped_to_threads:
            return b""  # they have what the program has
        dataset = source.shipped_dataset(loader)
        began_s = time.thread_time()
        digest = digest_of_shipment(dataset, (loader.window_fn, loader.collate_fn, loader.worker_init_fn))
        took_s = time.thread_time() - began_s
        if took_s > _LONG_LOOK_S and not self._has_warned:
            self._has_warned = True
            path, size_bytes = largest_part("dataset", dataset)
            _logger.warning(
                "each epoch begins with a look for changes of the dataset, which takes %.1f s: %s alone has %.1f MB. "
                "persistent_workers=True spares it; changes of the dataset then reach no worker",
                took_s,
                path,
                size_bytes / 1e6,
            )
        return digest
