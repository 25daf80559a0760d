"""Requests in OpenTelemetry's own SDK: metrics, spans with their parents, exemplars."""

import pytest

from torchtriage.operate.monitor import Monitor, OpenTelemetry

pytest.importorskip("opentelemetry.sdk")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def sdk(monkeypatch):
    """Return a reader of metrics and an exporter of spans, in the place of the process' own."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider([reader]), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
    yield reader, exporter
    meters.shutdown()
    tracers.shutdown()


def points(reader):
    data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    return {metric.name.removeprefix("torchtriage.inference."): metric.data.data_points for metric in data}


def serve(sink):
    with Monitor(sink) as monitor:
        model = monitor.observe("detector", version="2.1")
        with model.request(size=8, queued_ns=5_000_000) as request:
            request.fields = {"traceparent": PARENT, "request_id": "r-1"}
        with model.request() as request:
            request.error = "rejected"
        with model.request() as request:
            request.nan = True
        monitor.drain()
        assert monitor.n_sink_failures == 0


def test_metrics_and_spans_hold_what_was_told_of_requests(sdk):
    reader, exporter = sdk
    serve(OpenTelemetry())
    found = points(reader)
    (duration,) = found["duration"]
    assert (duration.count, dict(duration.attributes)) == (2, {"model": "detector", "version": "2.1"})
    assert found["queue"][0].sum == pytest.approx(0.005)
    assert dict(found["errors"][0].attributes)["error"] == "rejected"
    assert found["nan_outputs"][0].value == 1
    first, second, _ = exporter.get_finished_spans()
    assert (first.name, dict(first.attributes)) == (
        "detector",
        {"model": "detector", "version": "2.1", "size": 8, "request_id": "r-1"},
    )
    assert f"{first.parent.span_id:016x}" == PARENT.split("-")[2]
    assert f"{first.context.trace_id:032x}" == PARENT.split("-")[1]
    assert (second.status.is_ok, second.parent) == (False, None)
    assert 0 < first.end_time - first.start_time < 10**9


@pytest.mark.parametrize("spans", [True, False])
def test_exemplars_name_the_trace(sdk, spans):
    reader, exporter = sdk
    serve(OpenTelemetry(spans=spans))
    traces = {exemplar.trace_id for exemplar in points(reader)["duration"][0].exemplars}
    own = {span.context.trace_id for span in exporter.get_finished_spans()}
    assert bool(own) is spans
    assert traces
    assert traces <= (own or {int(PARENT.split("-")[1], 16)})
