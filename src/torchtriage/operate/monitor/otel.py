"""Requests as metrics and spans of OpenTelemetry, for the SDK that the service has set up."""

from __future__ import annotations

import time
from importlib import import_module

from torchtriage.core.errors import MissingExtraError
from torchtriage.operate.monitor.aggregate import RequestRow
from torchtriage.operate.monitor.instrument import Model
from torchtriage.operate.monitor.monitor import Monitor

METER = "torchtriage"


class OpenTelemetry:
    """Gives every request to the global meter and, with ``spans``, to the global tracer.

    A request whose ``fields`` hold a W3C ``traceparent`` becomes a child of that span, and the histogram's exemplars
    name its trace; ``request_id`` and the other fields become attributes of the span. All of it happens on the
    monitor's thread, some ten microseconds a request.
    """

    def __init__(self, *, spans: bool = True) -> None:
        try:
            self._metrics, self._trace, propagation = (
                import_module(f"opentelemetry.{name}")
                for name in ("metrics", "trace", "trace.propagation.tracecontext")
            )
        except ImportError as error:
            raise MissingExtraError(
                "OpenTelemetry's metrics and spans need its API, which is not installed",
                hint="pip install 'torchtriage[otel]' opentelemetry-sdk",
            ) from error
        self._extract = propagation.TraceContextTextMapPropagator().extract
        self._spans = spans

    def start(self, monitor: Monitor) -> None:
        """Begin; in a forked child, anew."""
        meter = self._metrics.get_meter(METER)
        self._tracer = self._trace.get_tracer(METER)
        self._duration = meter.create_histogram(
            "torchtriage.inference.duration", unit="s", description="Time of a request that succeeded."
        )
        self._queued = meter.create_histogram(
            "torchtriage.inference.queue", unit="s", description="Time a request waited before it began."
        )
        self._errors = meter.create_counter("torchtriage.inference.errors", description="Requests that failed.")
        self._nan = meter.create_counter("torchtriage.inference.nan_outputs", description="Outputs that contained NaN.")
        self._offset_ns = time.time_ns() - time.perf_counter_ns()

    def offer(self, model: Model, rows: list[RequestRow]) -> None:
        """Record finished requests."""
        labels = {"model": model.name, "version": model.version}
        for start_ns, end_ns, size, note in rows:
            fields = (note.fields if note is not None else None) or {}
            error = "" if note is None else note.error
            context = self._extract({"traceparent": str(fields["traceparent"])}) if "traceparent" in fields else None
            if self._spans:
                attributes = {**labels, **{key: value for key, value in fields.items() if key != "traceparent"}}
                if size is not None:
                    attributes["size"] = size
                span = self._tracer.start_span(
                    model.name, context=context, attributes=attributes, start_time=start_ns + self._offset_ns
                )
                if error:
                    span.set_status(self._trace.StatusCode.ERROR, error)
                span.end(end_ns + self._offset_ns)
                context = self._trace.set_span_in_context(span, context)  # for exemplars
            if error:
                self._errors.add(1, {**labels, "error": error}, context=context)
            else:
                self._duration.record((end_ns - start_ns) * 1e-9, labels, context=context)
            if note is not None and note.queued_ns is not None:
                self._queued.record(note.queued_ns * 1e-9, labels, context=context)
            if note is not None and note.nan:
                self._nan.add(1, labels, context=context)

    def close(self, deadline_s: float) -> None:
        """Leave what is pending to the SDK, whose exporters flush at its own shutdown."""
