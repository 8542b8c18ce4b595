"""How fast datasets are made into shards, beside a plain copy and what peers do with the same samples."""
