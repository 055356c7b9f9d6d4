"""A serving engine simulated step by step: arrivals, step times, KV blocks and schedulers; frames as a log has them."""
