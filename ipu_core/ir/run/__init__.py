"""Runs of a Block on whole arrays: ideal, as declared, or with the machine's arithmetic."""
