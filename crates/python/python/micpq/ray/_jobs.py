"""Background jobs of one front, in the form of ``micpq serve``: measurements of recall."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import JSONResponse

from ._http import Refusal, refusal_of, whole_number
from ._searcher import Searcher

#: Jobs that are shown; older ones are forgotten.
MAX_JOBS = 1000


class Cancelled(Exception):
    """A caller has asked the job to stop."""


class Job:
    """A job and what is shown of it."""

    def __init__(self, id: int, kind: str, index: str) -> None:
        self.stop = threading.Event()
        self._begun = time.monotonic()
        self._view: dict[str, Any] = {
            "id": id, "kind": kind, "index": index, "status": "running", "stage": "", "done": 0, "total": None, "detail": "", "notes": [],
            "error": None, "result": None, "started": int(time.time()), "seconds": 0.0,
        }  # fmt: skip

    @property
    def running(self) -> bool:
        return bool(self._view["status"] == "running")

    def view(self) -> dict[str, Any]:
        seconds = {"seconds": time.monotonic() - self._begun} if self.running else {}
        return {**self._view, **seconds}

    def go_on(self) -> None:
        """Ends the job here if it is cancelled."""
        if self.stop.is_set():
            raise Cancelled

    def run(self, work: Callable[[Job], dict[str, Any]]) -> None:
        end: dict[str, Any]
        try:
            end = {"result": work(self), "status": "succeeded"}
        except Cancelled:
            end = {"status": "cancelled"}
        except Exception as problem:
            end = {"error": refusal_of(problem).message, "status": "failed"}
        self._view = {**self._view, **end, "seconds": time.monotonic() - self._begun}


class Jobs:
    """The handlers. One job runs at a time."""

    def __init__(self, searcher: Searcher, index: str) -> None:
        self.searcher, self.index = searcher, index
        self.last_recall: dict[str, Any] | None = None
        self._jobs: dict[int, Job] = {}
        self._next = 1
        self._starting = threading.Lock()

    @property
    def running(self) -> bool:
        return any(job.running for job in list(self._jobs.values()))

    def measure_recall(self, _: Any, __: Any, body: dict[str, Any]) -> JSONResponse:
        options = {name: int(value) for name, value in body.items() if value is not None}

        def work(job: Job) -> dict[str, Any]:
            self.last_recall = self.searcher.recall(**options, _go_on=job.go_on)
            return self.last_recall

        return self._start("recall", work)

    def show_recall(self, *_: Any) -> dict[str, Any]:
        return {"report": self.last_recall}

    def list(self, *_: Any) -> dict[str, Any]:
        return {"jobs": [job.view() for job in reversed(list(self._jobs.values()))]}

    def show(self, given: Mapping[str, str], _: Any, __: Any) -> dict[str, Any]:
        return self._job(given).view()

    def cancel(self, given: Mapping[str, str], _: Any, __: Any) -> JSONResponse:
        job = self._job(given)
        job.stop.set()
        return JSONResponse(job.view(), 202)

    def _job(self, given: Mapping[str, str]) -> Job:
        id = whole_number(0, (1 << 64) - 1)("job", given["job"])
        job = self._jobs.get(id)
        if job is None:
            raise Refusal(404, "unknown_job", f"there is no job {id}; GET /v1/jobs lists all jobs")
        return job

    def _start(self, kind: str, work: Callable[[Job], dict[str, Any]]) -> JSONResponse:
        with self._starting:
            for id, job in self._jobs.items():
                if job.running:
                    text = f"job {id} is running on this index; wait for it, or cancel it with DELETE /v1/jobs/{id}"
                    raise Refusal(409, "index_busy", text, {"retry-after": "1"})
            job = self._jobs[self._next] = Job(self._next, kind, self.index)
            self._next += 1
            if len(self._jobs) > MAX_JOBS:
                del self._jobs[min(self._jobs)]
        view = job.view()
        threading.Thread(target=job.run, args=(work,), name=f"job {view['id']}", daemon=True).start()
        return JSONResponse(view, 202)
