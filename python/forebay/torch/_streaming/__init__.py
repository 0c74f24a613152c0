"""Modules whose weights come and go."""
