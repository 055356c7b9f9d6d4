"""Reading a model's weights from storage: which files, what is cached, how fast each way of reading them is."""
