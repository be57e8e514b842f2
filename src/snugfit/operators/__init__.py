"""What an operator takes: bytes inside itself and work, on cards by rules, on this processor by asking it."""
