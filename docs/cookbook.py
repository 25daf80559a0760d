"""Questions to begin with, in DuckDB's SQL: docs/tables.md prints them, and tests run every one."""

QUESTIONS: tuple[tuple[str, str], ...] = (
    (
        "Which kernels take most of the device's time?",
        "select name, count(*) as calls, sum(dur_ns) / 1e6 as ms from kernels group by name order by ms desc limit 10",
    ),
    (
        "What is that time for?",
        "select category, sum(dur_ns) / 1e6 as ms, 100.0 * sum(dur_ns) / sum(sum(dur_ns)) over () as percent"
        " from kernels group by category order by ms desc",
    ),
    (
        "Which operators launched it?",
        "select op, count(*) as kernels, sum(dur_ns) / 1e6 as ms from kernels group by op order by ms desc limit 10",
    ),
    (
        "How long is each step, and how long does the device compute in it?",
        "select step, name, dur_ns / 1e6 as ms, 100.0 * compute_ns / dur_ns as compute_percent, judged"
        " from steps order by step",
    ),
    (
        "Which step is the slowest, compared with the median?",
        "select name, dur_ns / 1e6 as ms, dur_ns / median(dur_ns) over () as of_median from steps"
        " order by dur_ns desc limit 1",
    ),
    (
        "Which operators does the host spend most time in?",
        "select name, count(*) as calls, sum(self_ns) / 1e6 as self_ms from ops where kind = 'op'"
        " group by name order by self_ms desc limit 10",
    ),
    (
        "Which calls of the runtime take longest: does the host wait?",
        "select name, count(*) as calls, max(dur_ns) / 1e6 as longest_ms, sum(dur_ns) / 1e6 as ms"
        " from ops where kind = 'call' group by name order by ms desc limit 10",
    ),
    (
        "How long do kernels wait between launch and start?",
        "select quantile_cont((start_ns - launch_ns) / 1e3, [0.5, 0.95, 1]) as us_median_p95_most from kernels"
        " where launch_ns is not null",
    ),
    (
        "How many kernels are shorter than 10 µs, and what share of the time is theirs?",
        "select count(*) filter (dur_ns < 10000) as short, count(*) as kernels,"
        " 100.0 * coalesce(sum(dur_ns) filter (dur_ns < 10000), 0) / sum(dur_ns) as percent from kernels",
    ),
    (
        "Which kernels differ most from call to call?",
        "select name, count(*) as calls, quantile_cont(dur_ns, 0.95) / median(dur_ns) as p95_of_median from kernels"
        " where dur_ns > 0 group by name having count(*) >= 10 order by p95_of_median desc limit 10",
    ),
    (
        "Where does the device stand idle longest, and which kernel ends the gap?",
        "select (start_ns - busy_until_ns) / 1e6 as gap_ms, step, name, op from (select *, max(start_ns + dur_ns) over"
        " (partition by rank, device order by start_ns, row rows between unbounded preceding and 1 preceding)"
        " as busy_until_ns from kernels) where start_ns > busy_until_ns order by gap_ms desc limit 10",
    ),
    (
        "What is copied, and how fast?",
        "select name, count(*) as copies, sum(bytes) / 1e6 as mb, sum(bytes) / nullif(sum(dur_ns), 0) as gb_per_s"
        " from copies where kind = 'copy' group by name order by mb desc",
    ),
    (
        "Which input sizes does an operator see?",
        "select input_dims, count(*) as calls, sum(device_ns) / 1e6 as device_ms from ops"
        " where name in ('aten::mm', 'aten::addmm', 'aten::bmm', 'aten::convolution', 'aten::cudnn_convolution')"
        " group by input_dims order by device_ms desc limit 10",
    ),
    (
        "Which annotations take how long?",
        "select name, count(*) as times, avg(dur_ns) / 1e6 as mean_ms from ops where kind = 'annotation'"
        " group by name order by sum(dur_ns) desc limit 10",
    ),
    (
        "How many kernels does each stream run?",
        "select device, stream, count(*) as kernels, sum(dur_ns) / 1e6 as ms from kernels"
        " group by device, stream order by ms desc",
    ),
    (
        "Which collectives run without computation?",
        "select collective, count(*) as times, sum(dur_ns) / 1e6 as ms, sum(exposed_ns) / 1e6 as exposed_ms,"
        " sum(bytes) / 1e6 as mb from collectives group by collective order by exposed_ms desc",
    ),
    (
        "Which rank has the longest step, and which communicates least: do the others wait for it?",
        "select rank, step_ns / 1e6 as step_ms, compute_ns / 1e6 as compute_ms, comm_only_ns / 1e6 as comm_ms"
        " from ranks order by comm_ms",
    ),
    (
        "Which kernels do ranks run differently long?",
        "with each as (select rank, name, sum(dur_ns) / 1e6 as ms from kernels group by rank, name)"
        " select name, min(ms) as least_ms, max(ms) as most_ms, arg_max(rank, ms) as slowest_rank from each"
        " group by name having count(*) > 1 order by most_ms - least_ms desc limit 10",
    ),
    (
        "When is most memory allocated?",
        "select device_type, device, max(allocated_bytes) / 1e6 as mb, arg_max(at_ns, allocated_bytes) as at_ns,"
        " arg_max(step, allocated_bytes) as step from memory group by all order by mb desc",
    ),
    (
        "What does torchtriage find, and where?",
        "select code, title, saves_low_ms, saves_high_ms, per, file, line from findings where saves_high_ms > 0",
    ),
)
