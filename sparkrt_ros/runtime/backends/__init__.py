"""Execution backends: the ways of running a policy's regions.

Import from the modules: ``base`` has the contract, ``registry`` makes a backend by name.
"""
