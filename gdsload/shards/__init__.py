"""Files of samples: what is in them, where it is, how it is written, found and verified."""
