"""What tests of operators and of models share."""
