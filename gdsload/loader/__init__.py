"""What a user holds: datasets, loaders, their options, epochs, ranks and states."""
