"""The planner: the fastest recipe that fits a memory budget, found by simulation and explained."""
