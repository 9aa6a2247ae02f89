SIZE = 1

raise ValueError("no such size")
