"""What is trained on: data sets, text, and their batches."""
