"""Slurm's own words: its commands, their options, the states of jobs."""
