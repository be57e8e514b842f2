"""Tables and figures for people. Importing this room loads neither torch nor matplotlib."""
