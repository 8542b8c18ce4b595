"""The machine's services: memory, threads, streams, pinned blocks, the driver, and the probe of cuFile."""
