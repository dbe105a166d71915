"""What a training job is asked for in Python or in a file, with SageMaker's names."""
