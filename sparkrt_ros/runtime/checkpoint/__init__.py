"""Policy folders: reading, checking and describing them.

Import from the modules: ``config`` and ``stats`` need no torch, ``load`` does.
"""
