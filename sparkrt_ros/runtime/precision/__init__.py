"""Precision tiers: which arithmetic a network may use, and what it has to prove for it."""
