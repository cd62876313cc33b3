"""The embedded robot: a simulated arm, its cameras, a task, an expert and the training."""
