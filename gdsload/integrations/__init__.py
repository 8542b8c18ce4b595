"""Integrations with other frameworks: a module for each, which alone imports it."""
