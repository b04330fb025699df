"""A run that never ends and leaves a process of its own; it is told a word by which the test finds both."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
Path(f"started{os.environ['RANK']}").touch()
if dist.get_rank() == 0:
    dist.barrier()
while True:
    time.sleep(0.1)
