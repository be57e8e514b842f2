"""A page that is served to one's own browser: who may ask, what is worked on, and what is given up. Knows no plans."""
