"""The page of a check in a real browser: no request, no error, and no wider than the screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from tests.measure.gate.test_report import along, regressed
from tests.report import forms

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_drawn_and_fit(chrome: webdriver.Chrome, tmp_path: Path, width: int, scheme: str) -> None:
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    for result in (regressed(), along()):
        page = tmp_path / "page.html"
        page.write_text(forms.page(result), "utf-8")
        chrome.get(page.as_uri())
        assert chrome.get_log("browser") == []
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
        requests = "return performance.getEntriesByType('resource').length"
        assert chrome.execute_script(requests) == 0
        for picture in chrome.find_elements(By.CSS_SELECTOR, "svg"):
            assert picture.size["height"] > 10
            assert picture.size["width"] > min(width / 3, 250)
        # dots are drawn, in ink that differs from the paper
        dot = chrome.find_element(By.CSS_SELECTOR, ".dot, .point")
        paper = chrome.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
        assert dot.value_of_css_property("stroke") != paper
