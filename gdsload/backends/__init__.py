"""Ways that bytes travel from files to where batches are built. The seam is in `base`."""
