"""The process that has imported hidet, and our side of the talk with it."""
