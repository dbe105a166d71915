"""The environment of a script on its host, by its contracts or by an existing job."""
