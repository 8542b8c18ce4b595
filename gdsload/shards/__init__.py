"""Files of samples: what is in them, where it lies, how it is written, found and verified."""
