"""What rounding did to a run: looked at while it trains, and blamed afterwards."""
