"""One start of a Hugging Face pipeline, traced in a process of its own."""
