"""The arithmetic of a black-box product or sum, compared bit for bit with one that is known: `conformance`."""
