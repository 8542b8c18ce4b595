"""The loaders that a user holds, with their datasets, options, epochs, ranks and states."""
