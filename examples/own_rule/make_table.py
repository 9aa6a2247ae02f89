"""Writes a table of a function as a Python module; the rule lookup_table runs it."""

import argparse
import math


def gelu(x: float) -> float:
    return 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0)))


FUNCTIONS = {"gelu": gelu, "tanh": math.tanh}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--function", choices=FUNCTIONS, required=True)
    parser.add_argument("--low", type=float, required=True)
    parser.add_argument("--high", type=float, required=True)
    parser.add_argument("--intervals", type=int, required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()

    function = FUNCTIONS[options.function]
    step = (options.high - options.low) / options.intervals
    with open(options.out, "w", encoding="utf-8") as file:
        print(f"LOW = {options.low}\nHIGH = {options.high}\nVALUES = [", file=file)
        for i in range(options.intervals + 1):
            # Nine digits tell every float32 from its neighbours.
            print(f"    {function(options.low + i * step):.9g},", file=file)
        print("]", file=file)


if __name__ == "__main__":
    main()
