"""`ddpify lint`: paths and settings in, problems out, in the form that was asked for."""
