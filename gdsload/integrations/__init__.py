"""What some frameworks need beside a loader: a module for each, that alone imports it."""
