"""What reports say of process groups, built from data alone."""

from __future__ import annotations

from dataclasses import replace

from torchtriage.diagnose.verdict.result import GroupSummary
from torchtriage.report.documents.process_groups import called, parts, rate, sizes, table, told

TENSOR = GroupSummary(
    role="TP",
    told_by="name",
    how="its name",
    name="mesh_tp",
    n_groups=128,
    least_ranks=8,
    most_ranks=8,
    n_ranks=1024,
    n_missing=0,
    layout="adjacent",
    n_per_step=84.0,
    median_bytes=64 << 20,
    largest_bytes=96 << 20,
    small_share=0.036,
    communication_ns=7_000_000,
    overlapped_ns=1_000_000,
    exposed_ns=6_000_000,
    waiting_ns=2_000_000,
    transfer_ns=3_500_000,
    unsplit_ns=500_000,
    shared_ns=0,
    least_exposed_ns=4_000_000,
    most_exposed_ns=9_000_000,
    algorithm_gbps=108.4,
    bus_gbps=189.6,
    link="NVLink",
    link_gbps=300,
    of_link=0.632,
    link_how="one host, and the device's name",
)


def test_a_role_is_a_line() -> None:
    assert called(TENSOR) == "TP, 128 groups of 8 ranks, mesh_tp"
    assert parts(TENSOR) == (
        "1.00 ms overlapped, 6.00 ms exposed (2.00 ms waiting, 3.50 ms transfer, 500 µs not split),"
        " 4.00-9.00 ms by group"
    )
    assert rate(TENSOR) == "190 GB/s on the bus, 63 % of NVLink (300 GB/s)"
    assert sizes(TENSOR) == "median 64.0 MiB, largest 96.0 MiB, 3.6 % below 256 KiB"
    assert told(TENSOR) == "role by name, 84 messages, median 64.0 MiB, largest 96.0 MiB"


def test_what_is_not_known_is_not_said() -> None:
    one = replace(
        TENSOR,
        role="unknown",
        told_by="",
        name="\x1b[31m",
        n_groups=1,
        least_ranks=0,
        most_ranks=0,
        n_per_step=1.0,
        median_bytes=None,
        largest_bytes=None,
        small_share=None,
        waiting_ns=0,
        transfer_ns=0,
        unsplit_ns=6_000_000,
        bus_gbps=None,
    )
    assert called(one) == "unknown, 1 group, \\x1b[31m"
    assert parts(one) == "1.00 ms overlapped, 6.00 ms exposed"
    assert (rate(one), sizes(one), told(one)) == ("", "", "1 message")


def test_a_link_that_is_not_recorded_has_no_share_and_says_so() -> None:
    one = replace(
        TENSOR, n_missing=2, of_link=None, link="", link_gbps=None, link_how="link not recorded: no host names"
    )
    assert rate(one) == "at least 190 GB/s on the bus (link not recorded: no host names)"
    assert rate(one, brief=True) == "at least 190 GB/s on the bus (link not recorded)"
    assert "(at least 2.00 ms waiting, 3.50 ms transfer," in parts(one)
    over = replace(TENSOR, of_link=None, link_how="140 % of the peak: reduced inside the switch")
    assert "140 % of the peak" in rate(over, brief=True)


def test_the_table_has_every_group() -> None:
    found = table([TENSOR, replace(TENSOR, role="DP", waiting_ns=0, transfer_ns=0, layout="every 8th")], "step")
    assert [row[0] for row in found.rows] == [
        "TP, 128 groups of 8 ranks, mesh_tp",
        "DP, 128 groups of 8 ranks, mesh_tp",
    ]
    assert [row[5:7] for row in found.rows] == [("2.00 ms", "3.50 ms"), ("", "")]
