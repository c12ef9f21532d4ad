"""What the measurements of bench.py say: rates and starts told apart, overheads, and the report."""

from __future__ import annotations

import statistics


def spread(values: list[float], digits: int = 4) -> str:
    middle, least, most = (f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.{digits}g}" for v in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def line(seconds: dict[str, list[float]]) -> list[tuple[float, float]]:
    """Of each round: what a build takes however many documents it has, in seconds, and what 1,000 documents add."""
    small, large = sorted(seconds, key=int)
    more = int(large) - int(small)
    slopes = [(b - a) / more for a, b in zip(seconds[small], seconds[large])]
    return [(b - slope * int(large), 1e3 * slope) for b, slope in zip(seconds[large], slopes)]


def keyed(seconds: dict) -> dict[str, dict[str, list[float]]]:
    """Seconds by workers and size, with keys as in the file."""
    return {str(count): {str(size): times for size, times in sizes.items()} for count, sizes in seconds.items()}


def derived(result: dict) -> dict:
    """Figures that plan.py takes, computed from the measured ones by one rule."""
    plain_builds, ray_builds = keyed(result["plain_build_seconds"]), keyed(result["ray_build_seconds"])
    found: dict[str, dict | list] = {"fixed_seconds": {}, "overhead_percent": {}, "marginal_overhead_percent": {}}
    for count, plain in plain_builds.items():
        on_ray = ray_builds[count]
        lines = {"plain": line(plain), "ray": line(on_ray)}
        largest = max(plain, key=int)
        found["fixed_seconds"][count] = {who: [fixed for fixed, _ in of] for who, of in lines.items()}
        found["overhead_percent"][count] = [100 * (r / p - 1) for p, r in zip(plain[largest], on_ray[largest])]
        found["marginal_overhead_percent"][count] = [100 * (r / p - 1) for (_, p), (_, r) in zip(lines["plain"], lines["ray"])]
    index = keyed(result["index_seconds"])["1"]
    largest = max(index, key=int)
    # Where the two sizes differ by less than chance does, all of the time counts for the documents.
    indexing = [(fixed, slope) if fixed > 0 and slope > 0 else (0.0, 1e3 * t / int(largest)) for (fixed, slope), t in zip(line(index), index[largest])]
    found["index_fixed_seconds"] = [fixed for fixed, _ in indexing]
    found["index_documents_per_second"] = [1e3 / slope for _, slope in indexing]
    return found


def text(run: str, result: dict) -> str:
    """The report."""
    documents = result["documents"]
    small = min(result["plain_build_seconds"]["1"], key=int)
    lines = [
        "# Ray against the plain program", "", run, "",
        f"{documents:,} texts of 30 to 60 words, {result['encoder']}, {result['bits']} bits, int8 rerank vectors. Medians (least to greatest) of interleaved rounds; an overhead",
        "compares two runs of one round. Both load the encoder in every build. Ray itself is running; its workers are started by the build.", "",
        "## Building", "",
        "A worker has one thread, and there are as many shards as workers; the plain program has as many threads as Ray has workers.", "",
        "| workers | plain, s | Ray, s | plain, documents/s | Ray, documents/s | overhead, % | a worker while it encodes, documents/s | until the first document, s | writing the shards, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for count in result["plain_build_seconds"]:
        plain, on_ray = (result[name][count][str(documents)] for name in ("plain_build_seconds", "ray_build_seconds"))
        rates = [documents / statistics.median(seconds) for seconds in (plain, on_ray)]
        lines.append(
            f"| {count} | {spread(plain)} | {spread(on_ray)} | {rates[0]:.0f} | {rates[1]:.0f} | {spread(result['overhead_percent'][count], 3)} "
            f"| {spread(result['worker_documents_per_second'][count])} | {spread(result['start_seconds'][count], 3)} | {spread(result['index_seconds'][count][str(documents)], 3)} |"
        )
    lines += [
        "", "## Start and rate", "",
        f"The same builds with {int(small):,} documents. Of the two sizes follow, by a straight line, what a build takes however many documents it has, and what further documents take.", "",
        "| workers | plain, fixed, s | Ray, fixed, s | plain, further documents/s | Ray, further documents/s | overhead of further documents, % |",
        "|---|---|---|---|---|---|",
    ]
    for count, fixed in result["fixed_seconds"].items():
        rates = [[1e3 / slope for _, slope in line(result[name][count])] for name in ("plain_build_seconds", "ray_build_seconds")]
        lines.append(
            f"| {count} | {spread(fixed['plain'], 3)} | {spread(fixed['ray'], 3)} | {spread(rates[0])} | {spread(rates[1])} | {spread(result['marginal_overhead_percent'][count], 3)} |"
        )
    lines += [
        "", f"One task that writes a shard: {spread(result['index_fixed_seconds'], 3)} s however many documents it has, and {spread(result['index_documents_per_second'])} documents/s.",
    ]
    trained = result["train_seconds"]
    lines += [
        "", f"To start Ray on one machine, until it has run a task, takes {spread(result['ray_start_seconds'], 3)} s.",
        "", "## Training", "",
        f"On {result['train_documents']:,} texts, one epoch, twelve noisy views of each, without a cache. The plain program has {result['cores']} threads; on Ray the training has one, and one worker of one encodes.", "",
        "| plain, s | Ray, s |", "|---|---|", f"| {spread(trained['plain'])} | {spread(trained['ray'])} |",
        "", "## Searching", "",
        f"k 10 with texts, re-ranked; one caller; the answers are compared. Milliseconds; the overhead is that of the medians of a round. An empty call to an actor takes {result['call_milliseconds']:.2f}.", "",
        "| shards | query | plain p50 | plain p99 | Ray p50 | Ray p99 | overhead of Ray, p50 |", "|---|---|---|---|---|---|---|",
    ]
    for shards, kinds in result["query_milliseconds"].items():
        for kind, rounds in kinds.items():
            columns = [spread([one[i] for one in rounds], 3) for i in range(4)]
            lines.append(f"| {shards} | {kind} | {' | '.join(columns)} | {spread([one[2] - one[0] for one in rounds], 3)} |")
    lines += [
        "", f"A shard takes {result['bytes_per_document']:.0f} bytes per document on disk, texts and rerank vectors included; {result['code_bytes_per_document']:.1f} of them are packed codes. "
        f"While it is built, the parts between encoding and indexing take {result['part_bytes_per_document']:.0f} bytes per document.",
    ]
    return "\n".join(lines) + "\n"
