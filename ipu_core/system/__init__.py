"""Many chips at work: the schedules of a pipeline, and the account of an update on a system."""
