"""The fake device: training code runs on tensors without values, and every allocation and operator is taken down."""
