"""Real language models that come without a model hub, as folders that transformers and serving frameworks load."""
