# SPDX-License-Identifier: MIT
"""Compiles Python files without leaving anything behind, and names those that do not."""
import sys

bad = 0
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        try:
            compile(file.read(), path, "exec")
        except SyntaxError as error:
            print(f"{path}: {error}")
            bad += 1
print(f"{len(sys.argv) - 1 - bad} of {len(sys.argv) - 1} files compile")
sys.exit(bool(bad) or len(sys.argv) < 2)
