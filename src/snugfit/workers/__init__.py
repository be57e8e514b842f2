"""The processes in which simulations run, and how models and recordings travel to them and back."""
