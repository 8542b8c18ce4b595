"""Encoded images of batches: what they say of themselves, how they are decoded, and what is cut out of them."""
