def lookup(table, key):
    return table[key]
