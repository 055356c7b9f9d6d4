"""What a cluster tells of a start: events, pods and nodes, as kubectl prints them and as JSON.

`amounts` reads durations, ages and stamps, `tables` and `objects` turn text and JSON into one frame of events, `nodes`
reads what nodes offer, `pod_starts` makes starts of the events, and `reading` puts it together.
"""
