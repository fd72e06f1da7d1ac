"""The scripts of `benchmarks/` are modules beside each other, not a package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
