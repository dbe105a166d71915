"""The first code in a process of a job: imports only the parts that the environment asks for."""
