"""Commands write their datasets without waiting for the disk."""

from tests.syncing import no_sync  # noqa: F401 - a fixture
