"""Runs that may be killed at any moment."""
