"""What is trained: models by name, their weights, data, and tasks."""
