"""From TorchDynamo's graph to a backend: AOTAutograd, conversion, partition, eager fall-back."""
