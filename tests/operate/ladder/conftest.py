"""No test leaves a thread behind."""

from tests.operate.monitor.conftest import no_thread_is_left

__all__ = ["no_thread_is_left"]
