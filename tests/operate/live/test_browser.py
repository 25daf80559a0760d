"""The live page in a real browser: a slow model seen as alarm, ladder step and rollback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from torchtriage.operate.ladder import Ladder, Mode, Policy
from torchtriage.operate.live import LivePage
from torchtriage.operate.monitor import Alert, Detection, Monitor
from torchtriage.operate.rollout import Rollout, RolloutPlan, open_rollouts

pytestmark = [pytest.mark.browser, pytest.mark.slow]


class Calls:
    """A model under load: a ladder answers, a rollout looks on, one thread asks."""

    def __init__(self) -> None:
        self.slow_s = 0.0
        self.page = LivePage(port=0, buttons={"Slow down": self.slow_down})
        self._alarms: list[Alert] = []
        self.ladder = Ladder(
            "detector",
            [Mode("full", self._full), Mode("lite", lambda: 2)],
            Policy(deadline_s=0.05, dwell_s=0.1, recover_s=600),
            dry_run=False,
        )
        plan = RolloutPlan("detector 2", steps=(0.05, 1.0), least_s=600, candidate="2")
        self.rollout = Rollout(plan, open_rollouts(":memory:"), alarm=self._alarmed)
        self.monitor = Monitor(self.page, Detection(self.page.show, self._alarms.append))
        self.page.watch(self.ladder, self.rollout)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _full(self) -> int:
        time.sleep(0.002 + self.slow_s)
        return 1

    def slow_down(self) -> None:
        self.slow_s = 0.1

    def _alarmed(self) -> str:
        return next((alarm.title() for alarm in self._alarms if alarm.kind == "shift"), "")

    def _ask(self) -> None:
        detect = self.monitor.observe("detector", version="1")
        while not self._stop.is_set():
            # what is behind the ladder is slow until it steps down; in front of it nothing is
            with detect.request():
                self.ladder()

    def __enter__(self) -> Calls:
        self.ladder.start()
        self.rollout.run(every_s=0.1)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.ladder.close()
        self.rollout.close()
        self.monitor.close()


def screen(chrome: webdriver.Chrome, width: int, scheme: str) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def wait(chrome: webdriver.Chrome, what: Callable[[webdriver.Chrome], object]) -> None:
    WebDriverWait(chrome, 60, poll_frequency=0.1).until(what)


def text(chrome: webdriver.Chrome, selector: str) -> str:
    # read in one step: the page may replace an element at any time
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText).join('|')"
    return str(chrome.execute_script(script, selector))


@pytest.mark.timing  # beside other tests its calls are slow before it makes them so, and all is never well
def test_a_slow_model_is_seen_as_alarm_step_and_rollback(chrome: webdriver.Chrome) -> None:
    with Calls() as calls:
        screen(chrome, 1280, "light")
        chrome.get(f"http://127.0.0.1:{calls.page.port}/")
        wait(chrome, lambda _: "detector 1" in text(chrome, "figure h2").replace("\n", " "))
        wait(chrome, lambda _: calls.monitor.snapshot()[0].finished > 800)
        wait(chrome, lambda _: text(chrome, "#verdict") == "All is well")
        assert text(chrome, "#link") == "live"
        assert text(chrome, ".rungs .now b") == "full"
        assert text(chrome, ".stages .now") == "5\N{NO-BREAK SPACE}%"
        drawn = "return document.querySelector('figure path.p50').getBBox().width"
        # a second of requests is a few pixels, and 800 may have taken one second or twenty
        wait(chrome, lambda _: chrome.execute_script(drawn) > 5)

        chrome.find_element(By.CSS_SELECTOR, "#buttons button").click()
        wait(chrome, lambda _: "alarm: shift" in text(chrome, "#events li"))
        wait(chrome, lambda _: text(chrome, ".rungs .now b") == "lite")
        wait(chrome, lambda _: text(chrome, ".stages .left") == "5\N{NO-BREAK SPACE}%")
        wait(chrome, lambda _: "rolled back" in text(chrome, "#events li"))
        assert "slower" in text(chrome, "#events li.bad")
        assert text(chrome, "#verdict") != "All is well"
        assert text(chrome, "#kicker b") != "all is well"
        assert chrome.title.startswith("! ")
        assert "full → lite" in text(chrome, "#events li.bad")
        wait(chrome, lambda _: chrome.find_elements(By.CSS_SELECTOR, "figure path.sign.alarm"))

        for width, scheme in ((1280, "dark"), (360, "light"), (360, "dark")):
            screen(chrome, width, scheme)
            time.sleep(1.5)  # drawn again
            assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
            paper = chrome.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
            pixel = chrome.execute_script("return getComputedStyle(document.querySelector('path.p50')).stroke")
            assert pixel != paper
        assert chrome.get_log("browser") == []
        asked = chrome.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
        assert {one.split("/", 3)[3] for one in asked} <= {"events", "press/Slow%20down"}


def test_the_page_is_used_by_keys_and_says_when_it_is_left_alone(chrome: webdriver.Chrome) -> None:
    page = LivePage(port=0)
    monitor = Monitor(page)
    screen(chrome, 1280, "light")
    chrome.get(f"http://127.0.0.1:{page.port}/")
    with monitor.observe("<b>detector</b>").request():
        pass
    wait(chrome, lambda _: text(chrome, "figure h2").startswith("<b>detector</b>"))
    picture = chrome.find_element(By.CSS_SELECTOR, "figure svg")
    assert "<b>detector</b>" in str(picture.get_attribute("aria-label"))
    picture.send_keys(Keys.ARROW_LEFT)
    assert "requests/s" in text(chrome, ".tip")
    picture.send_keys(Keys.ESCAPE)
    assert not chrome.find_element(By.CSS_SELECTOR, ".tip").is_displayed()

    chrome.find_element(By.ID, "pause").click()
    facts = chrome.execute_script("return document.getElementById('facts').firstChild")
    page.show(Alert("a", "", "shift", "slower", "", 1.0, 0.0))
    time.sleep(1.5)
    assert chrome.execute_script("return document.getElementById('facts').firstChild === arguments[0]", facts)
    assert text(chrome, "#events li") == "Nothing yet."
    chrome.find_element(By.ID, "pause").click()
    wait(chrome, lambda _: text(chrome, "#verdict") == "a: slower")

    chrome.find_element(By.ID, "theme").click()
    assert chrome.find_element(By.ID, "theme").text == "Light"
    port = page.port
    monitor.close()
    wait(chrome, lambda _: text(chrome, "#link") == "not connected: trying again")
    again = LivePage(port=port)
    with Monitor(again):
        wait(chrome, lambda _: text(chrome, "#link") == "live")
        wait(chrome, lambda _: text(chrome, "#verdict") == "Waiting for the first request")
    chrome.get("about:blank")
    chrome.get_log("browser")  # that nobody answered for a while is in it
