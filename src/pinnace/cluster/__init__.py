"""A cluster's life: its directory, how it is started, what it is, how it ends."""
