"""When each step of a cluster's start and end happened: recorded by every process, put together by whoever asks.

<cluster>/timeline/commands/<host>-<pid>.jsonl   by commands on the login node
<cluster>/timeline/batch.jsonl                   by the batch script
<cluster>/timeline/nodes/<node>.jsonl            by the processes of a node
<cluster>/timeline/timeline.json, timeline.svg   what ``pinnace timeline`` has made of them and of the components' logs
"""
