"""Sub-commands of `lamina`, one module each; heavy imports stay inside the functions."""
