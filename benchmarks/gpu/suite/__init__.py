"""Loaders on a machine with a GPU: gdsload beside its peers, with the link and the disk measured in the same rounds."""
