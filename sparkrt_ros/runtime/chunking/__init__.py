"""From chunks of actions to single actions: by steps, or by time. Imports no torch."""
