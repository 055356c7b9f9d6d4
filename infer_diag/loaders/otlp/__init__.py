"""OpenTelemetry's own encodings, JSON and protobuf: spans, metrics, and logs whose lines other loaders read."""
