"""Convolutions and linear layers with their epilogues, in the best form a device offers."""
