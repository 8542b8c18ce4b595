"""The checked-out code beside another tree of it."""
