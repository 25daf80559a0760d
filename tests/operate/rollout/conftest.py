"""No test leaves a thread behind; a PostgreSQL server for those that ask for one."""

from tests.measure.gate.conftest import postgres
from tests.operate.monitor.conftest import no_thread_is_left

__all__ = ["no_thread_is_left", "postgres"]
