"""What torchrun, SageMaker and Vertex AI tell a script: written for it, and read back."""
