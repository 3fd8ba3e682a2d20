"""One module for each group of APIs; each lists what it serves in `APIS`."""
