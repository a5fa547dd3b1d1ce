"""The machine and the training on it: a precision-first model of the IPU."""
