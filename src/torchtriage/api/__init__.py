"""The names torchtriage promises: traces, compile logs, benchmarks, profiles."""
