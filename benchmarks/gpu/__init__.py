"""Files into GPU memory: every path at its best, beside what the link and the disk can do."""
