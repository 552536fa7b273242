"""Tools as data: listings, schemas for the model, validation of arguments, and results."""
