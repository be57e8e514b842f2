"""The models of the zoo: one file for each library, and what a model of the zoo is."""
