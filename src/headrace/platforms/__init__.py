"""The contracts of torchrun, SageMaker and Vertex AI with a script: written and read back."""
