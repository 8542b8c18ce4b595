"""From an order of samples to batches: what to read, where it lands, how a batch is gathered from it."""
