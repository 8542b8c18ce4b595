"""The loader over a simulated drive: what the library itself costs where the drive at hand is slow."""
