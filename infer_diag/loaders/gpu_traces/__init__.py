"""Profilers' traces of GPUs: Kineto's JSON (`kineto*`) and the SQLite exports of Nsight Systems (`nsight*`)."""

from __future__ import annotations

from infer_diag.loaders.gpu_traces import kineto, nsight

LOADERS = (kineto.LOADER, nsight.LOADER)
