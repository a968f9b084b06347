"""pytorch_script.py with its imports changed, and nothing else.

mpiexec -n 2 python tests/distributed/ported_program.py
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from ampkit.distributed.environment import launched

text = Path(__file__).with_name("pytorch_script.py").read_text()
text = re.sub(r"^import torch$", "import ampkit as torch", text, flags=re.M)
text, count = re.subn(r"^(import|from) torch\b", r"\1 ampkit", text, flags=re.M)
assert count == 8

if __name__ == "__main__":
    names = {"__name__": "ported"}
    exec(compile(text, "ported.py", "exec"), names)
    names["main"](str(Path(tempfile.gettempdir()) / f"ported-{launched().world_size}-{Path.cwd().name}.pt"))
