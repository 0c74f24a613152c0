"""Weights from files and to files, unit by unit."""
