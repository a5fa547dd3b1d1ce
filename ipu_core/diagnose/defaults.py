"""What `blame` takes if nobody says, and by what `sensitivity` may count: known before either is loaded."""

TOLERANCE = 0.05
BUDGET = 12.0
BY = ("layer", "cause")
