"""The built-in rules: one file a rule, each a function over `hidet_build.rule`."""
