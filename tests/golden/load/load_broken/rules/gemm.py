from .tiles import SIZE
