"""Builds an index of an object store's corpus on the cluster of scale-job.yaml: `ray submit scale-job.yaml scale-job.py`.

If it is killed, submit it again: it goes on where it was.
"""

import ray

import micpq.ray

ray.init(address="auto")


def progress(documents, rates):
    print(f"{documents} documents, {sum(rates.values()):.0f} documents/s of {len(rates)} workers", flush=True)


built = micpq.ray.build(
    "s3://corpus/news/",
    "/shared/news",
    shards=16,
    # Of machines with 32 cores: 4 workers of 7 each. What is left reads.
    workers=16 * 4,
    cpus_per_worker=7,
    train={"sample": 200_000, "bits": 64, "cpus_per_worker": 8},
    progress=progress,
)
print(built)
with micpq.ray.Searcher("/shared/news", replicas=2, threads=8) as searcher:
    print(searcher.search("oil prices and the economy", k=10))
micpq.ray.snapshot("/shared/news", "s3://backup/news")
