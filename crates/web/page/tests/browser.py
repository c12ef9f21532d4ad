"""Tests a web export in a real Chromium, from a static file server with and without range requests.

    python crates/web/page/tests/browser.py FOLDER EXPECTED.json [--results FILE]

EXPECTED.json has queries, each with the ids that the program finds with the fast query encoder and without re-ranking, in order.
The page must find the same. Exits with 1 and names the failed check. --results writes a table of bytes and of milliseconds.
"""

import argparse
import functools
import http.server
import json
import pathlib
import statistics
import sys
import threading
import urllib.parse

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


class Files(http.server.SimpleHTTPRequestHandler):
    """Python's file server; `ranges` adds what every other static server has."""

    ranges = True
    sent = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        asked = self.headers.get("Range")
        path = pathlib.Path(self.translate_path(self.path))
        if asked is None or not self.ranges or not path.is_file():
            self.sent.append((urllib.parse.urlsplit(self.path).path, None))
            return super().do_GET()
        first, last = asked.removeprefix("bytes=").split("-")
        with open(path, "rb") as file:
            file.seek(int(first))
            body = file.read(int(last) - int(first) + 1)
        self.sent.append((urllib.parse.urlsplit(self.path).path, len(body)))
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(body)


def serve(folder, ranges):
    handler = type("Handler", (Files,), {"ranges": ranges, "sent": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, handler.sent, f"http://127.0.0.1:{server.server_port}/"


def browser():
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in ["headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage",
                 "disable-background-networking", "disable-component-update", "disable-sync"]:
        options.add_argument("--" + flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def ready(driver):
    def done(_):
        status = driver.find_element(By.ID, "status").text
        assert "cannot start" not in status and "did not work" not in status, status
        return driver.find_element(By.TAG_NAME, "body").get_attribute("data-ready")
    return int(WebDriverWait(driver, 60, 0.02).until(done, "timeout: the page is ready"))


ASK = """
const [query, done] = [arguments[0], arguments[1]];
import("./micpq.js").then(async ({ open }) => {
  window.index ??= await open("./");
  done((await window.index.search(query, 10)).map((hit) => hit.id));
}).catch((error) => done(String(error)));
"""


def check(driver, url, expected):
    driver.get(url)
    ready(driver)
    assert driver.title and driver.find_element(By.TAG_NAME, "h1").text == driver.title
    for query, ids in expected.items():
        found = driver.execute_async_script(ASK, query)
        assert found == ids, f"{query!r}: the page finds {found}, the program {ids}"
        driver.get(url + "?q=" + urllib.parse.quote(query))
        ready(driver)
        shown = [json.loads(item.get_attribute("data-id")) for item in driver.find_elements(By.CSS_SELECTOR, "#hits li")]
        assert shown == ids, f"{query!r}: the list shows {shown}, the program finds {ids}"
    field = driver.switch_to.active_element
    assert field.get_attribute("id") == "query", "the field has the focus"
    label = driver.execute_script("return arguments[0].labels[0].textContent", field)
    assert label.strip(), "the field has a label"
    status = driver.find_element(By.ID, "status")
    assert status.get_attribute("aria-live") == "polite" and "nearest" in status.text, status.text
    errors = [line for line in driver.get_log("browser") if line["level"] == "SEVERE"]
    assert not errors, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("expected", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path)
    args = parser.parse_args()
    expected = json.loads(args.expected.read_text())
    for ranges in (True, False):
        server, sent, url = serve(args.folder, ranges)
        driver = browser()
        try:
            check(driver, url, expected)
            parts = [size for path, size in sent if path.endswith("documents.jsonl")]
            assert parts and all((size is not None) == ranges for size in parts), parts
        finally:
            driver.quit()
            server.shutdown()
    if args.results:
        args.results.write_text(results(args.folder, list(expected)))


QUERY_TIMES = """
const times = arguments[0].map((query) => {
  const begun = performance.now();
  window.index.nearest(query, 10);
  return performance.now() - begun;
});
return times.sort((a, b) => a - b);
"""


def results(folder, queries):
    """Bytes of an export, and times of nine fresh browsers."""
    server, _, url = serve(folder, True)
    loads, times = [], []
    for _ in range(9):
        driver = browser()
        try:
            driver.get(url + "?q=" + urllib.parse.quote(queries[0]))
            loads.append(ready(driver))
            driver.execute_async_script(ASK, queries[0])
            times += driver.execute_script(QUERY_TIMES, queries * 20)
        finally:
            driver.quit()
    server.shutdown()
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    texts = sizes.pop("documents.jsonl")
    times.sort()
    return f"""# An index in a browser

`make bench-web`: the demo's stories at 64 bits, exported with `micpq export --to web`, from a file server on the same machine, in Chromium.
The page found the same ids in the same order as the program for {len(queries)} queries.

| what | value |
|---|---|
| bytes before the first query | {sum(sizes.values()):,} |
| of them codes, codebooks and query encoder | {sizes['search.bin']:,} |
| bytes of the documents, of which a page reads its hits | {texts:,} |
| start of loading to the first hits, median of {len(loads)} fresh browsers | {statistics.median(loads)} ms |
| the slowest of them | {max(loads)} ms |
| a query, from its text to the nearest documents, median of {len(times):,} | {statistics.median(times):.2f} ms |
| its 99th percentile | {times[int(0.99 * len(times))]:.2f} ms |
"""


if __name__ == "__main__":
    try:
        main()
    except AssertionError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
