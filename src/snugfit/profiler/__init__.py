"""What a person's own script took, operator by operator, and what would make it smaller."""
