"""The conversion of datasets in other formats into shards."""
