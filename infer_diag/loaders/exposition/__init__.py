"""Metrics as servers expose them: Prometheus text, OpenMetrics, and what a Prometheus server answers as JSON.

`scrapes` cuts text into values of series, `series` reads names and labels, `answers` does both for saved JSON,
`families` says which metric means what, `engines` and `devices` make frames of them, and `reading` puts it together.
"""
