"""Types of SageMaker's SDK that launch scripts pass to an Estimator."""
