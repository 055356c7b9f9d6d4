"""Where the models are published, as engines name them on their command lines."""

from __future__ import annotations

REPOSITORIES = {
    "Llama-2-7B": "meta-llama/Llama-2-7b-chat-hf",
    "Llama-2-13B": "meta-llama/Llama-2-13b-chat-hf",
    "Llama-3.1-8B": "meta-llama/Llama-3.1-8B-Instruct",
    "Llama-3.1-70B": "meta-llama/Llama-3.1-70B-Instruct",
    "Phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
    "Qwen2-7B": "Qwen/Qwen2-7B-Instruct",
}


def repository(model: str) -> str:
    """The model's repository on the hub."""
    return REPOSITORIES[model]
