"""What a cluster tells of a start: events, pods and nodes, as kubectl prints them and as JSON, and logs of a node.

`amounts` reads durations, ages and stamps, `tables` and `objects` turn text and JSON into one frame of events, `nodes`
reads what nodes offer, `pod_starts` makes starts of the events, and `reading` puts it together. `node_events` and
`runtime_events` make the same events of kubelet's and containerd's lines, for `node_logs`. `accounts` makes one start
of what several files tell of a pod.
"""
