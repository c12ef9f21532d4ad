"""Tests the page in a real Chromium: type, filter, open a hit, delete a document, use only keys; and that a page of
another site does nothing to the server.

    python crates/serve/page/tests/browser.py BASE_URL [--map FILE] [--screenshots FOLDER]

BASE_URL is a running server whose first index has news about oil, wheat and banks of 1987 to 1989, as the tests of the binary
build it; FILE is a map in one file of the same index. Exits with 1 and names the failed check.
"""

import argparse
import http.server
import json
import pathlib
import sys
import threading
import time
import urllib.request

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

INTERACTIVE = {"button", "link", "textbox", "searchbox", "combobox", "slider", "checkbox", "listbox"}


def browser(width=1100, height=900, dark=False):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in ["headless=new", "no-sandbox", "use-angle=swiftshader", "enable-unsafe-swiftshader", "disable-quic", "no-first-run", "disable-dev-shm-usage",
                 "disable-background-networking", "disable-component-update", "disable-sync"]:
        options.add_argument("--" + flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    # The window has a minimum width. The emulated screen has none.
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
    scheme = "dark" if dark else "light"
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    return driver


class Page:
    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        driver.get(url)
        self.until(lambda: driver.find_element(By.ID, "index").get_attribute("value"), "the indexes are listed")

    def until(self, true, what):
        WebDriverWait(self.driver, 20, 0.05).until(lambda _: true(), f"timeout: {what}")

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def active(self, script):
        return self.driver.execute_script("const e = document.activeElement; return " + script)

    def key(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def search(self, text):
        """Types into the field and waits for the hits of this text."""
        field = self.one("#query")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)
        self.answered(text)

    def answered(self, text):
        self.until(lambda: self.one("#hits").get_attribute("data-query") == text.strip(), f"the answer to {text!r} is shown")

    def index(self):
        return self.one("#index").get_attribute("value")

    def errors(self):
        return [line for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]


def num_codebooks(url):
    with urllib.request.urlopen(url + "/v1/indexes") as answer:
        return json.load(answer)["indexes"][0]["num_codebooks"]


def check(true, what):
    if not true:
        raise AssertionError(what)


def nameless(driver):
    """Roles of interactive elements without an accessible name."""
    tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    found = []
    for node in tree:
        role = node.get("role", {}).get("value")
        if not node.get("ignored") and role in INTERACTIVE and not node.get("name", {}).get("value", "").strip():
            found.append(role)
    return found


def typing_filtering_opening(page, shots):
    page.search("crude oil barrel price")
    check(len(page.all("#hits .hit")) == 20, "a page has 20 hits")
    oil = sum(text.count("oil") > 0 for text in page.texts("#hits .hit .about"))
    # Four even topics give five by chance, and the model of the tests is weak.
    check(oil >= 10, f"{oil} of 20 hits for oil are labelled so")
    check(page.all("#hits mark"), "matching keywords are marked")
    scores = [float(text.split("score ")[1].split()[0]) for text in (about.text for about in page.all("#hits .hit .about"))]
    check(scores == sorted(scores, reverse=True), f"hits are in the order of their scores: {scores}")
    check(page.all("#hits .distances span"), "every hit shows its codebook distances")
    cells = len(page.all("#hits .hit:first-child .distances span"))
    check(cells == num_codebooks(page.url), f"{num_codebooks(page.url)} codebooks have {cells} cells")
    if shots:
        page.driver.save_screenshot(str(shots / "search.png"))

    chip = next(c for c in page.all(".chip") if c.text.startswith("1988"))
    chip.click()
    check(chip.get_attribute("aria-pressed") == "true", "a chosen chip is pressed")
    page.until(lambda: (texts := page.texts("#hits .hit .about")) and all("year: 1988" in t for t in texts),
               "all hits are of 1988")
    # Both at once: the next page of 1988 is not the next page of all years.
    page.driver.execute_script("arguments[0].click(); document.getElementById('more').click()", chip)
    page.until(lambda: any("year: 1988" not in text for text in page.texts("#hits .hit .about")), "hits of other years are back")
    check(len(page.all("#hits .hit")) == 20, "there is no page of another query behind them")

    page.one("#more").click()
    page.until(lambda: len(page.all("#hits .hit")) == 40, "the second page follows the first")
    ids = page.texts("#hits .hit .about span:first-child")
    check(len(set(ids)) == 40, "no document is on both pages")

    page.one("#hits .hit button").click()
    page.until(lambda: page.one("#document").get_attribute("open"), "the hit opens")
    page.until(lambda: "year" in page.one("#document-body").text, "the document is there with its attributes")
    page.one("#document-like").click()
    page.until(lambda: page.one("#like").is_displayed() and page.all("#hits .hit"), "similar documents are shown")


def keyboard_only(page):
    """Searches, selects, opens and deletes with the keyboard only."""
    page.key(Keys.ESCAPE)
    # In the field itself a slash is a letter.
    page.driver.execute_script("document.activeElement.blur()")
    page.key("/")
    page.until(lambda: page.active("e.id") == "query", "/ leads to the search field")
    page.key("wheat harvest")
    page.answered("wheat harvest")
    page.key(Keys.ARROW_DOWN)
    page.until(lambda: page.active("e.className") == "hit", "the arrow leads to the first hit")
    page.key(Keys.ARROW_DOWN)
    name = page.active("e.getAttribute('aria-label')")
    page.key(Keys.DELETE)
    page.until(lambda: page.one("#document").get_attribute("open"), "the document opens before it is deleted")
    identity = name.removeprefix("Document ")
    page.until(lambda: page.one("#document-title").text == name, "it is the one that was chosen")
    for _ in range(6):
        if page.active("e.id") == "document-delete":
            break
        page.key(Keys.TAB)
    check(page.active("e.id") == "document-delete", "Tab leads to the button that deletes")
    page.key(Keys.ENTER)
    check("again" in page.one("#document-delete").text, "deleting asks first")
    page.key(Keys.ENTER)
    page.until(lambda: not page.one("#document").get_attribute("open"), "the document is deleted")
    page.until(lambda: "is deleted" in page.one("#status").text, "the page says so")
    check(f"id {identity}" not in page.texts("#hits .about span:first-child"), "the hit is gone at once")
    page.search("grain")
    page.search("wheat harvest")
    check(f"id {identity}" not in page.texts("#hits .about span:first-child"), "and is not found again")
    for digit, view in zip("23456", ["codebooks", "map", "topics", "training", "health"]):
        page.driver.execute_script("document.activeElement.blur()")
        page.key(digit)
        page.until(lambda: page.one(f"#{view}").is_displayed(), f"{digit} leads to {view}")
    page.key("?")
    page.until(lambda: page.one("#help").get_attribute("open"), "? shows the keys")
    page.key(Keys.ESCAPE)
    page.until(lambda: not page.one("#help").get_attribute("open"), "Escape closes them")


def views(page, shots):
    def go(view, selector):
        page.driver.execute_script(f"location.hash = '#{view}'")
        page.until(lambda: page.all(selector), f"{view} shows {selector}")
        if shots:
            time.sleep(0.3)
            page.driver.save_screenshot(str(shots / f"{view}.png"))
        check(not nameless(page.driver), f"{view}: without an accessible name: {nameless(page.driver)}")

    go("codebooks", "#usage .codebook button")
    check(len(page.all("#usage .codebook")) == num_codebooks(page.url), "there is a row per codebook")
    used = max(page.all("#usage button"), key=lambda b: int(b.get_attribute("title").split()[0].replace(",", "")))
    used.click()
    page.until(lambda: page.all("#codeword .hit"), "a codeword shows its documents")
    check(page.all("#codeword .terms li"), "and the terms that characterise them")
    go("map", "#map-view canvas[data-drawn]")
    documents_map(page, shots)
    go("topics", "#topics-actions button")
    topics(page)
    go("map", "#map-view canvas[data-drawn]")
    go("training", "#curves polyline")
    go("health", "#figures table")
    page.until(lambda: "MiB" in page.one("#figures").text or "KiB" in page.one("#figures").text, "sizes are shown")


def request(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data, {"content-type": "application/json"})) as answer:
        return json.load(answer)


def pixels(page, selector="#map-view .map-canvas"):
    """How many pixels of the canvas are drawn, of its own drawing: a screenshot has labels too."""
    return page.driver.execute_async_script("""
        const [selector, done] = arguments;
        const canvas = document.querySelector(selector);
        const view = canvas.mapView;
        // A drawing buffer is readable only in the task that draws.
        view.plane.draw();
        const copy = document.createElement("canvas");
        [copy.width, copy.height] = [canvas.width, canvas.height];
        const context = copy.getContext("2d");
        context.drawImage(canvas, 0, 0);
        const data = context.getImageData(0, 0, copy.width, copy.height).data;
        const colours = new Set();
        let drawn = 0;
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 40) { drawn += 1; colours.add(data[i] >> 5 << 10 | data[i + 1] >> 5 << 5 | data[i + 2] >> 5); }
        done({ drawn, colours: colours.size, webgl: view.plane.usesWebGl });
    """, selector)


def hovered(page, selector):
    """Moves the mouse to a point and waits for its tip."""
    place = page.driver.execute_script("""
        const view = document.querySelector(arguments[0]).mapView;
        const box = view.canvas.getBoundingClientRect();
        // A point in view, away from the edges.
        for (let i = 0; i < view.points.count; i += 1) {
          const [x, y] = view.plane.toScreen(view.points.x[i], view.points.y[i]);
          if (x > 50 && y > 50 && x < box.width - 50 && y < box.height - 50) return [Math.round(x - box.width / 2), Math.round(y - box.height / 2)];
        }
    """, selector)
    canvas = page.driver.find_element(By.CSS_SELECTOR, selector)
    webdriver.ActionChains(page.driver).move_to_element_with_offset(canvas, *place).perform()
    tip = page.driver.find_element(By.CSS_SELECTOR, ".map-tip")
    WebDriverWait(page.driver, 10, 0.05).until(lambda _: tip.is_displayed() and tip.text, "timeout: hovering shows a title")
    return tip.text


def lasso(page, selector):
    """Draws around the left half with Shift and returns how many documents the page counts, and the area."""
    canvas = page.driver.find_element(By.CSS_SELECTOR, selector)
    width, height = canvas.size["width"], canvas.size["height"]
    at = lambda x, y: (int((x - 0.5) * width), int((y - 0.5) * height))
    moves = webdriver.ActionChains(page.driver, duration=40).move_to_element_with_offset(canvas, *at(0.02, 0.02)).key_down(Keys.SHIFT).click_and_hold()
    for corner in [(0.5, 0.04), (0.55, 0.96), (0.02, 0.9)]:
        moves.move_to_element_with_offset(canvas, *at(*corner))
    moves.release().key_up(Keys.SHIFT).perform()
    status = page.driver.find_element(By.CSS_SELECTOR, ".map-status")
    WebDriverWait(page.driver, 10, 0.05).until(lambda _: "selected" in status.text, "timeout: a lasso selects")
    area = page.driver.execute_script("return document.querySelector(arguments[0]).mapView.selection.area", selector)
    return int(status.get_attribute("data-count")), area


def documents_map(page, shots):
    """The map draws, names what is under the mouse, selects with a lasso, lights up hits, and works without a mouse."""
    driver, canvas = page.driver, "#map-view .map-canvas"
    total = request(page.url, "/v1/indexes/" + page.index() + "/count", {})["count"]
    seen = pixels(page)
    check(seen["webgl"], "the map is drawn with WebGL")
    check(seen["drawn"] > 200 and seen["colours"] >= 3, f"the map has points in several colours: {seen}")
    check(page.all("#map-view .map-names span"), "topics have their names on the map")
    check(hovered(page, canvas), "hovering shows a title")

    count, area = lasso(page, canvas)
    name = request(page.url, f"/v1/indexes/{page.index()}/map")["map"]["map"]
    server = request(page.url, f"/v1/indexes/{page.index()}/count", {"area": {"map": name, "polygon": area}})["count"]
    check(0 < count < total, f"the lasso selects a part: {count} of {total}")
    check(count == server, f"the page counts {count} documents in the lasso, the server {server}")
    if shots:
        driver.save_screenshot(str(shots / "map-lasso.png"))
    page.one("#map-actions button").click()
    page.until(lambda: page.one("#area").is_displayed(), "the search says that it is within an area")
    page.search("bank loan")
    found = page.driver.execute_async_script("""
        const [index, map, polygon, done] = arguments;
        fetch(`v1/indexes/${index}/query`, { method: "POST", headers: { "content-type": "application/json" },
          body: JSON.stringify({ text: "bank loan", kind: 0, hybrid: 0, k: 20, area: { map, polygon } }) })
          .then((answer) => answer.json()).then(({ hits }) => done(hits.map(({ id }) => String(id))));
    """, page.index(), name, area)
    check([text.removeprefix("id ") for text in page.texts("#hits .hit .about span:first-child")] == found, "the hits are those of the area")
    page.one("#area button").click()
    page.search("crude oil barrel price")
    driver.execute_script("location.hash = '#map'")
    page.until(lambda: page.driver.execute_script("return document.querySelector(arguments[0]).mapView.plane.lights?.length", canvas) == 20,
               "the 20 hits are lit on the map")

    page.one("#map-view .map-canvas").send_keys(Keys.ESCAPE)
    page.until(lambda: "in view" in page.one(".map-status").text, "Escape clears the selection")
    page.one("#map-view .map-canvas").send_keys("+++++")
    page.until(lambda: int(page.one(".map-status").get_attribute("data-count")) < total, "plus comes nearer: fewer documents are in view")
    before = driver.execute_script("return [...document.querySelector(arguments[0]).mapView.plane.centre]", canvas)
    page.one("#map-view .map-canvas").send_keys(Keys.ARROW_LEFT)
    after = driver.execute_script("return [...document.querySelector(arguments[0]).mapView.plane.centre]", canvas)
    check(after[0] < before[0] and after[1] == before[1], "the left arrow goes left")
    page.one("#map-view .map-canvas").send_keys("0")
    page.until(lambda: int(page.one(".map-status").get_attribute("data-count")) == total, "0 shows everything")
    page.until(lambda: len(page.all(".map-list li button")) == 50, "50 documents are listed")
    page.one(".map-list li button").send_keys(Keys.ENTER)
    page.until(lambda: page.one("#document").get_attribute("open"), "a document of the list opens")
    page.key(Keys.ESCAPE)

    page.one(".map-tools select").send_keys("year")
    page.until(lambda: any("1988" in text for text in page.texts(".map-legend button")), "the map is coloured by an attribute")
    legend = next(b for b in page.all(".map-legend button") if b.text.startswith("1988"))
    legend.click()
    year = request(page.url, f"/v1/indexes/{page.index()}/count", {"filter": "year:1988"})["count"]
    page.until(lambda: int(page.one(".map-status").get_attribute("data-count")) == year, "a value of the legend selects its documents")
    legend.click()
    check(not nameless(driver), f"map: without an accessible name: {nameless(driver)}")


def topics(page):
    """Finds topics with a click, and searches in one."""
    next(b for b in page.all("#topics-actions button") if "filter" in b.text).click()
    page.until(lambda: page.all(".topic"), "topics are found and shown")
    check(all(len(article.find_elements(By.CSS_SELECTOR, "li button")) > 0 for article in page.all(".topic")), "every topic has typical documents")
    check(page.all(".topic .trend rect") and page.all("#topics-list .tree"), "topics have a trend and join")
    first = request(page.url, f"/v1/indexes/{page.index()}/topics")["report"]["topics"][0]
    next(b for b in page.all(".topic button") if b.text == "Search in this topic").click()
    page.search("price")
    page.until(lambda: (texts := page.texts("#hits .hit .about")) and all("topic: 0" in t for t in texts), f"hits are of the topic {first['name']}")
    next(c for c in page.all(".chip") if c.get_attribute("aria-pressed") == "true").click()


def quick_changes(page):
    """A view that failed once shows no old problem when it works again."""
    driver = page.driver
    driver.execute_script("""
        window.realFetch = window.fetch;
        window.fetch = (path, options) => (String(path).includes("/training") ? Promise.reject(new Error("no network")) : realFetch(path, options));
        location.hash = "#training";
    """)
    page.until(lambda: page.all("#training .problem"), "a failed view says so")
    driver.execute_script("window.fetch = realFetch; location.hash = '#health'")
    page.until(lambda: page.all("#figures table"), "another view works")
    driver.execute_script("location.hash = '#training'")
    page.until(lambda: page.all("#curves polyline") and not page.all("#training .problem"), "the problem is gone when the view works")
    # A codeword that cannot be read says so.
    driver.execute_script("location.hash = '#codebooks'")
    page.until(lambda: page.all("#usage .codebook button"), "the codebooks are there")
    driver.execute_script("""
        window.fetch = (path, options) => (/codebooks\\/\\d/.test(String(path)) ? Promise.reject(new Error("no network")) : realFetch(path, options));
        document.querySelector("#usage button").click();
    """)
    page.until(lambda: "no network" in page.one("#codeword").text, "a codeword that cannot be read says so")
    driver.execute_script("window.fetch = realFetch")


def late_answers(url):
    """Answers about an index that come after another was chosen change nothing."""
    driver = browser()
    try:
        # A second index that has nothing, and answers about the first that take their time.
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
            const real = window.fetch;
            const later = (time) => new Promise((done) => setTimeout(done, time));
            const json = (value) => new Response(JSON.stringify(value), { headers: { "content-type": "application/json" } });
            window.fetch = async (path, options) => {
              if (path === "v1/indexes") {
                const { indexes } = await (await real(path, options)).json();
                return json({ indexes: [...indexes, { name: "empty" }] });
              }
              if (path.startsWith("v1/indexes/empty/facets")) return json({ facets: [] });
              if (path.startsWith("v1/indexes/empty/codebooks")) return json({ usage: [[1, 1]] });
              if (path.startsWith("v1/indexes/empty")) return json({ kinds: false, map: null, documents: 0, report: null, hits: [], milliseconds: {} });
              if (/facets|codebooks/.test(path)) await later(700);
              return real(path, options);
            };
        """})
        page = Page(driver, url)
        choose = """
            const picker = document.getElementById("index");
            picker.value = "empty";
            picker.dispatchEvent(new Event("change"));
        """
        driver.execute_script(choose)
        time.sleep(1.2)
        check(not page.all("#chips .chip"), "no filters of the index that was left")
        driver.execute_script("document.getElementById('index').selectedIndex = 0; location.hash = '#codebooks'")
        time.sleep(0.2)
        driver.execute_script(choose)
        time.sleep(1.2)
        check(len(page.all("#usage .codebook")) == 1, "the codebooks are those of the index that was chosen last")
        check(not page.errors(), f"the console has errors: {page.errors()}")
    finally:
        driver.quit()


def narrow(url, shots):
    driver = browser(width=390, height=800, dark=True)
    try:
        page = Page(driver, url)
        page.search("bank loan")
        wide = driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        check(wide <= 0, f"at phone width the page is {wide} pixels too wide")
        paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        check(paper == "rgb(20, 22, 26)", f"a dark system gets a dark page, not {paper}")
        if shots:
            driver.save_screenshot(str(shots / "phone.png"))
        check(not page.errors(), f"the console has errors: {page.errors()}")
    finally:
        driver.quit()


class File:
    """A map in one file, opened from the disk."""

    def __init__(self, driver, path):
        self.driver = driver
        driver.get(path.resolve().as_uri())
        WebDriverWait(driver, 60, 0.05).until(lambda _: driver.find_elements(By.CSS_SELECTOR, "canvas[data-drawn]"), "timeout: the map is drawn")


def map_in_one_file(path, shots):
    driver = browser()
    try:
        page = File(driver, path)
        canvas = ".map-canvas"
        total = driver.execute_script("return document.querySelector(arguments[0]).mapView.points.count", canvas)
        seen = pixels(page, canvas)
        check(seen["webgl"] and seen["drawn"] > 200 and seen["colours"] >= 3, f"the file shows points in several colours: {seen}")
        check(hovered(page, canvas), "hovering shows a title")
        count, area = lasso(page, canvas)
        check(0 < count < total, f"the lasso selects a part: {count} of {total}")
        again = driver.execute_script("const [selector, area] = arguments; return document.querySelector(selector).mapView.plane.inside(area).length", canvas, area)
        check(count == again, "the selection is that of its area")
        WebDriverWait(driver, 10, 0.05).until(lambda _: driver.find_elements(By.CSS_SELECTOR, ".map-list li button"), "timeout: the list follows")
        first = driver.find_element(By.CSS_SELECTOR, ".map-list li button")
        text = first.text
        first.send_keys(Keys.ENTER)
        check(text and driver.find_element(By.ID, "chosen").text.startswith(text), "a document of the list is named above the map")
        check(not nameless(driver), f"without an accessible name: {nameless(driver)}")
        if shots:
            driver.save_screenshot(str(shots / "map-file.png"))
        lines = [line for line in driver.get_log("browser") if line["level"] == "SEVERE"]
        check(not lines, f"the console has errors: {lines}")
    finally:
        driver.quit()


# What a page can do to another site without its permission, as JavaScript: SITE, INDEX. Answers are opaque to it.
ATTEMPTS = {
    "train": "fetch(SITE + '/v1/indexes/' + INDEX + '/train', {method: 'POST', mode: 'no-cors'})",
    "train with a text": "fetch(SITE + '/v1/indexes/' + INDEX + '/train', {method: 'POST', mode: 'no-cors', body: '{\"epochs\": 1}'})",
    "train with cookies": "fetch(SITE + '/v1/indexes/' + INDEX + '/train', {method: 'POST', mode: 'no-cors', credentials: 'include'})",
    "stream": "fetch(SITE + '/v1/indexes/' + INDEX + '/stream', {method: 'POST', mode: 'no-cors', body: '{\"id\": 1, \"text\": \"x\"}\\n'})",
    "stream with a preflight": "fetch(SITE + '/v1/indexes/' + INDEX + '/stream', {method: 'POST', body: '{\"id\": 1, \"text\": \"x\"}\\n', headers: {'Content-Type': 'application/x-ndjson'}})",
    "backup": "fetch(SITE + '/v1/indexes/' + INDEX + '/backups', {method: 'POST', mode: 'no-cors'})",
    "beacon": "Promise.resolve(navigator.sendBeacon(SITE + '/v1/indexes/' + INDEX + '/backups'))",
    "drop": "fetch(SITE + '/v1/indexes/' + INDEX, {method: 'DELETE'})",
    "read": "fetch(SITE + '/v1/indexes/' + INDEX + '/facets').then(answer => answer.text())",
}
FORM = """
const frame = document.createElement('iframe'); frame.name = 'target'; document.body.append(frame);
const form = document.createElement('form');
Object.assign(form, {method: 'post', target: 'target', enctype: arguments[1], action: arguments[0]});
document.body.append(form); form.submit();
"""


class Blank(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another site</title><body></body>")

    def log_message(self, *_):
        pass


def attempt(driver, name, url, index):
    """The value of an attempt, or the error that the page sees."""
    script = f"const [SITE, INDEX, done] = arguments; {ATTEMPTS[name]}.then(done, error => done('' + error))"
    return driver.execute_async_script(script, url, index)


def foreign_page(url):
    """A page of another port trains, writes, backs up and reads nothing; the server's own page does."""
    def get(path):
        with urllib.request.urlopen(url + path) as answer:
            return json.load(answer)

    index = get("/v1/indexes")["indexes"][0]["name"]
    state = lambda: (len(get("/v1/jobs")["jobs"]), len(get(f"/v1/indexes/{index}/backups")["backups"]),  # noqa: E731
                     get(f"/v1/indexes/{index}")["documents"])
    before = state()
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    driver = browser()
    try:
        driver.set_script_timeout(20)
        for host in ["127.0.0.1", "localhost"]:
            driver.get(f"http://{host}:{other.server_port}/")
            for name in ATTEMPTS:
                seen = attempt(driver, name, url, index)
                check(name in ("beacon",) or isinstance(seen, dict) or "TypeError" in str(seen), f"{name} from {host}: {seen}")
            for path in ["train", "backups", "stream"]:
                for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]:
                    driver.execute_script(FORM, f"{url}/v1/indexes/{index}/{path}", kind)
        time.sleep(1)
        check(state() == before, f"another site changed the server: {before} became {state()}")
        # The same request of the server's own page is executed: the attempts could succeed.
        driver.get(url)
        attempt(driver, "backup", url, index)
        check(state()[1] == before[1] + 1, "the server's own page cannot back up")
    finally:
        driver.quit()
        other.shutdown()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url")
    arguments.add_argument("--map", type=pathlib.Path)
    arguments.add_argument("--screenshots", type=pathlib.Path)
    given = arguments.parse_args()
    shots = given.screenshots
    if shots:
        shots.mkdir(parents=True, exist_ok=True)
    driver = browser()
    try:
        page = Page(driver, given.url)
        typing_filtering_opening(page, shots)
        keyboard_only(page)
        views(page, shots)
        quick_changes(page)
        check(not page.errors(), f"the console has errors: {page.errors()}")
    finally:
        driver.quit()
    late_answers(given.url)
    narrow(given.url, shots)
    if given.map:
        map_in_one_file(given.map, shots)
    foreign_page(given.url)
    print("the page works: search, filters, pages, documents, deletion, keys, six views, a map with lasso and hits, topics, phone width, dark mode, other sites")


if __name__ == "__main__":
    try:
        main()
    except Exception as problem:  # noqa: BLE001 - shows the failed check before the traceback
        print(f"failed: {problem}", file=sys.stderr)
        raise
