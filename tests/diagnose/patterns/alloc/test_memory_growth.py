"""MEM029: memory that grows from step to step."""

from __future__ import annotations

from builder import TraceBuilder

from torchtriage.diagnose.patterns.alloc.memory_growth import find

MIB = 1 << 20


def job(grown, *, device_type=1, freed=False, start=100 * MIB, op="aten::linear", total=None):
    """Add steps of 1 ms; step i takes a block of ``grown[i]`` bytes, keeps it or ``freed`` it.

    ``freed`` : each step also frees the block of the step before, as a cache that is copied does.
    """
    builder = TraceBuilder()
    if total:
        builder.meta["deviceProperties"][0]["totalGlobalMem"] = total
    allocated = start
    for index, size in enumerate(grown):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.op(op, at + 100, 100)
        builder.op("aten::empty", at + 120, 20)
        records = [(130, 2 * MIB, 7), (400, -2 * MIB, 7)]  # a temporary
        if size:
            records.insert(1, (150, size, 100 + index))
        if freed and index:
            # the whole cache moves: the old one goes
            whole = sum(grown[: index + 1])
            records = [(150, whole, 100 + index), (160, -sum(grown[:index]), 99 + index)]
        for when, one, addr in records:
            allocated += one
            builder.memory(at + when, one, allocated=allocated, reserved=0, device_type=device_type, addr=addr)
    return builder


def test_quiet_on_a_level_load():
    assert not job([0] * 6).claims(find)


def test_quiet_on_growth_in_the_first_step():
    assert not job([50 * MIB, 0, 0, 0, 0, 0]).claims(find)


def test_quiet_on_a_list_of_losses():
    assert not job([512] * 6).claims(find)


def test_quiet_on_little_beside_much():
    assert not job([MIB // 2] * 6, start=200 * MIB).claims(find)


def test_quiet_on_a_cache_that_is_copied_to_grow():
    assert not job([2 * MIB] * 6, freed=True).claims(find)


def test_quiet_on_growth_in_half_of_the_steps():
    assert not job([2 * MIB, 0, 2 * MIB, 0, 2 * MIB, 0]).claims(find)


def test_quiet_on_few_steps():
    assert not job([2 * MIB] * 4).claims(find)


def test_blocks_of_every_step_that_nobody_frees():
    trace = job([2 * MIB] * 6, total=1000 * MIB).build()
    (claim,) = find(trace)
    assert (claim.certainty, claim.always, claim.time_class) == ("certain", True, "none")
    assert not len(claim.spans)
    assert claim.evidence["growth_bytes_per_step"] == 2 * MIB
    assert claim.evidence["kept_bytes_per_step"] == 2 * MIB
    assert claim.evidence["n_kept_blocks_per_step"] == 1
    assert claim.evidence["allocated_first_bytes"] == 102 * MIB
    assert claim.evidence["allocated_last_bytes"] == 112 * MIB
    assert claim.evidence["allocated_by"] == ["aten::linear"]
    assert claim.evidence["steps_until_full"] == (1000 - 112) // 2
    assert trace.name_of(claim.anchor) == "aten::linear"
    assert "full after 444 more steps" in claim.message


def test_little_is_much_where_little_is_allocated():
    (claim,) = find(job([MIB // 16] * 6, start=MIB).build())
    assert claim.evidence["growth_bytes_per_step"] == MIB // 16


def test_host_memory_counts_too():
    (claim,) = find(job([2 * MIB] * 6, device_type=0).build())
    assert claim.message.startswith("host memory grows by 2.00 MiB per step")
    assert "steps_until_full" not in claim.evidence


def test_blocks_taken_outside_operators():
    builder = job([2 * MIB] * 6)
    builder.events = [one for one in builder.events if one["cat"] != "cpu_op"]
    (claim,) = find(builder.build())
    assert claim.evidence["allocated_by"] == ["outside operators"]
    assert (len(claim.rows), claim.anchor) == (0, -1)
