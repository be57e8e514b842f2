"""The recorder: code runs on tensors without values, and every allocation and every operator is taken down."""
