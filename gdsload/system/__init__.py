"""What the machine is asked for: memory, threads, streams, pinned blocks, the driver, and whether cuFile answers."""
