"""The GPU encoder and Hugging Face transformers by turns, in one run: tokens a second and their ratio.

    turns.py CHECK FOLDER [ROUNDS] [options of check]

CHECK is the built example `check`, FOLDER as it takes it. Both programs are started once and asked in turn, pass by pass:
ours from ids in host memory to features in host memory, the peer as in peer.py (sorted by length, ids and features on the
GPU, the batch size that is fastest for it). With PLAIN=1 the peer is used as its documentation has it instead: corpus order,
ids from the host, features to the host. A round is one pass of each kind; medians over rounds, and the ratio's quartiles. A
line of JSON at the end.
"""

import json
import os
import statistics
import subprocess
import sys

check, folder = sys.argv[1], sys.argv[2]
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 15
here = __file__.rsplit("/", 1)[0] if "/" in __file__ else "."
KINDS = ("mean clean", "mean 0.3", "cls clean", "cls 0.3")


class Side:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, kind):
        self.process.stdin.write(kind + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"{self.process.args[0]} ended: {self.process.wait()}")
            try:
                return float(line)
            except ValueError:
                print(line.rstrip(), flush=True)


ours = Side([check, folder, "--turns"] + sys.argv[4:])
theirs = Side([sys.executable, f"{here}/peer.py", folder, os.environ.get("PLAIN") and "plain" or "turns"])
rates = {kind: ([], []) for kind in KINDS}
for turn in range(rounds + 2):
    for kind in KINDS:
        for side, list_ in zip((ours, theirs), rates[kind]):
            rate = side.ask(kind)
            if turn > 1:  # two rounds to warm up, in which the peer finds its batch size
                list_.append(rate)
result = {}
for kind, (mine, peer) in rates.items():
    ratios = sorted(a / b for a, b in zip(mine, peer))
    result[kind] = dict(
        micpq=round(statistics.median(mine)),
        transformers=round(statistics.median(peer)),
        ratio=round(statistics.median(ratios), 3),
        quartiles=[round(ratios[len(ratios) // 4], 3), round(ratios[3 * len(ratios) // 4], 3)],
    )
    print(f"{folder.rstrip('/').split('/')[-1]:<18} {kind:<11} {result[kind]}", flush=True)
print(json.dumps(dict(encoder=folder.rstrip("/").split("/")[-1], rounds=rounds, result=result)))
