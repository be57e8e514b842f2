"""Recipes in the words of other tools: what `snugfit export` writes. Imports no torch before it is needed."""
