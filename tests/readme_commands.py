"""The commands of the README's first screen, read from the README itself: CI runs what users are told to run."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def shell_blocks(text: str) -> list[str]:
    """Contents of the fenced ``bash`` blocks, in order."""
    return [block.strip() for block in re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S)]


def main() -> int:
    """Run block ``--run N`` (from 1) of the README in the repository; its exit status is returned."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run", type=int, required=True, help="number of the block, from 1")
    arguments = parser.parse_args()
    command = shell_blocks((REPOSITORY / "README.md").read_text())[arguments.run - 1]
    print(f"$ {command}", flush=True)
    return subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
