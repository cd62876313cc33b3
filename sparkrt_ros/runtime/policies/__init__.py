"""Policy networks in plain PyTorch, and the adapters that fit them to a session."""
