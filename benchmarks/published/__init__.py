"""Access patterns of benchmarks that others publish, with their own figures beside: never a result of theirs."""
