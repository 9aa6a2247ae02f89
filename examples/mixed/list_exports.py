"""Writes a report of what a library exports: list_exports.py functions.json lib.so report.txt"""

import json
import os
import sys


def main(functions_path: str, library_path: str, report_path: str) -> None:
    with open(functions_path, encoding="utf-8") as file:
        functions = json.load(file)["functions"]
    with open(report_path, "w", encoding="utf-8") as report:
        print(f"{os.path.basename(library_path)}: {os.path.getsize(library_path)} bytes", file=report)
        for function in sorted(functions, key=lambda function: function["name"]):
            print(f"  {function['signature']}", file=report)


if __name__ == "__main__":
    main(*sys.argv[1:])
