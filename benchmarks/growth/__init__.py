"""How a cluster grows: a real control plane in a Slurm job with simulated nodes, and as many real nodes as fit.

Simulated nodes are upstream's ``kwok`` (see ``pinnace.bench.growth``, from which this takes the client, the tables and
the objectives), built from the Go module proxy. For each size:

- how long it takes until all nodes are ready, and until all pods run (pods per second)
- with all of them there, how long a pod takes from its creation until it runs, at ten pods a second: Kubernetes' own
  objective is a p99 of 5 s
- how long the API takes to answer, by its own metrics: objectives are a p99 of 1 s for single objects,
  30 s for lists
- what the processes of the control plane take: memory, threads

With real nodes also what each node has of links, threads and descriptors. As root; a bed of its own is set up and
removed. See CONTRIBUTING.
"""
