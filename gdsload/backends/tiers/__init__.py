"""The tiers that keep bytes nearer to the GPU for later epochs: in VRAM and in the page cache."""
