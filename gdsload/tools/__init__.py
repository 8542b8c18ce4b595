"""Programs on top of the library: the command line, benchmarks, the doctor and the demo."""
