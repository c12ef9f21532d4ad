"""Would a training step be faster on a GPU? Its five matrix products at batch 64 (128 rows), f32, one after the other:
launched one by one, replayed as a CUDA graph, and on the CPU with one thread.

    step.py
"""

import statistics
import time

import torch

torch.backends.cuda.matmul.allow_tf32 = False
torch.set_num_threads(1)


def products(device, width, rows=128, hidden=768, inputs=768):
    x, w1, w2 = (torch.randn(*s, device=device) for s in ((rows, inputs), (hidden, inputs), (width, hidden)))
    dz = torch.randn(rows, width, device=device)

    def run():
        u = x @ w1.T
        z = u @ w2.T
        dw2 = dz.T @ u
        du = dz @ w2
        return z, dw2, du.T @ x

    return run


def median(run, wait, rounds=50):
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


for bits in (16, 32, 64, 128):
    width = 24 * bits // 4
    line = {"bits": bits, "cpu_one_thread_us": median(products("cpu", width), lambda: None)}
    if torch.cuda.is_available():
        run = products("cuda", width)
        for _ in range(5):
            run()
        torch.cuda.synchronize()
        line["gpu_launched_us"] = median(run, torch.cuda.synchronize)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        line["gpu_graph_us"] = median(graph.replay, torch.cuda.synchronize)
    print({k: round(v) for k, v in line.items()}, flush=True)
