"""The sources, one small file each."""
