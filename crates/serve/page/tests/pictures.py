"""Takes the pictures of the README and the guide: the page over the index of `make demo`, wide and on a phone, and its map.

    python crates/serve/page/tests/pictures.py MICPQ INDEX FOLDER
"""

import json
import pathlib
import subprocess
import sys
import time

from browser import Page, browser
from selenium.webdriver.support.ui import WebDriverWait


def take(url, place, question, **screen):
    driver = browser(**screen)
    try:
        Page(driver, url).search(question)
        # The facets follow the hits.
        time.sleep(1)
        driver.save_screenshot(str(place))
    finally:
        driver.quit()


def take_map(url, place):
    driver = browser(height=980)
    try:
        page = Page(driver, url)
        driver.execute_script("location.hash = '#map'")
        # The map is made first.
        WebDriverWait(driver, 300, 0.2).until(lambda _: page.all("#map-view canvas[data-drawn]"), "timeout: the map is drawn")
        page.until(lambda: page.all(".map-list li"), "the list follows")
        driver.save_screenshot(str(place))
    finally:
        driver.quit()


def main():
    micpq, index, folder = sys.argv[1:]
    server = subprocess.Popen([micpq, "serve", f"news={index}", "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        url = "http://" + json.loads(server.stdout.readline())["address"]
        take(url, pathlib.Path(folder) / "page.png", "oil prices and the economy")
        take_map(url, pathlib.Path(folder) / "map.png")
        take(url, pathlib.Path(folder) / "page-phone.png", "oil prices and the economy", width=390, height=800, dark=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
