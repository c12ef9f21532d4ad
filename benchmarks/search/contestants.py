"""Processes that hold an index and wait for requests, and the machine they run on."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EXAMPLES = ROOT / "target/release/examples"
OURS, FASTSCAN, PQ, SCANN, USEARCH = "micpq", "FAISS IndexPQFastScan", "FAISS IndexPQ", "ScaNN", "USearch"

COMMANDS = {
    OURS: [EXAMPLES / "contestant"],
    FASTSCAN: [sys.executable, HERE / "faiss_contestant.py", "fastscan"],
    PQ: [sys.executable, HERE / "faiss_contestant.py", "pq"],
    SCANN: [sys.executable, HERE / "float_contestant.py", "scann"],
    USEARCH: [sys.executable, HERE / "float_contestant.py", "usearch"],
    "index": [EXAMPLES / "keeper"],
}


class Contestant:
    def __init__(self, name):
        self.name = name
        self.process = subprocess.Popen(COMMANDS[name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            sys.exit(f"{self.name} ended at {request}; what it said is above")
        return json.loads(line)

    def resident(self):
        """Bytes of memory it holds now; nothing where the system does not say."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024

    def worked(self):
        """Seconds its threads have had a CPU so far, to the nanosecond while they sleep; nothing where the system does
        not say."""
        try:
            tasks = list(Path(f"/proc/{self.process.pid}/task").iterdir())
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
        except (OSError, ValueError, IndexError):
            return None

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def machine():
    info = {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
    try:
        text = Path("/proc/cpuinfo").read_text()
        field = lambda name: re.search(rf"^{name}\s*: (.*)$", text, re.M)[1]
        flags = set(field("flags").split())
        wanted = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vbmi", "avx512_vnni"]
        info["cpu"] = f"{field('model name')}, family {field('cpu family')} model {field('model')}"
        info["features"] = [f for f in wanted if f in flags]
        info["memory"] = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    except (OSError, TypeError):
        info["cpu"] = platform.processor() or platform.machine()
        info["features"] = []
    return info


def commit():
    asked = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"
