"""`pinnace bench`: the same programs on bare Slurm and in pinnace, in turn, on hosts of the user's own site."""
