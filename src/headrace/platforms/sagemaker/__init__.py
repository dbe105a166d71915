"""SageMaker's contract with a script: variables, files, folders, arguments and topology."""
