"""What a monitored service does at this moment, on a page of its own.

>>> from torchtriage import monitor
>>> from torchtriage.operate.live import LivePage
>>> page = LivePage(port=9465)  # http://127.0.0.1:9465
>>> monitor.start(page, monitor.Detection(monitor.log, page.show))  # doctest: +SKIP
>>> page.watch(ladder, rollout)  # doctest: +SKIP
"""

from torchtriage.operate.live.page import LivePage

__all__ = ["LivePage"]
