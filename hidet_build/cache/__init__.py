"""Where results of actions are kept: on disk now, over the network later."""
