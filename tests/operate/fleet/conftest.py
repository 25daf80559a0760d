"""The Redis server of the monitor's tests."""

from tests.operate.monitor.conftest import no_thread_is_left, server

__all__ = ["no_thread_is_left", "server"]
