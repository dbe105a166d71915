"""The first code in a rank: imports only the parts that the environment asks for."""
