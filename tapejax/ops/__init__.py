"""One declaration per operation, one file per theme; importing a file puts its operations into the table."""
