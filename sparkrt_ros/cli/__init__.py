"""The ``sparkrt`` command."""
