"""What a model is: the factor graph, how it is built and checked, and its compiled form."""
