"""Old → new maps of modules, paths and symbols: the data, how it is built, and how one is picked."""
