"use strict";
// Draws the page from its data block. Names from traces only ever become text nodes or
// attribute values of our own elements; there is no innerHTML here. Times are ns since the
// window's start.
(() => {
const DATA = JSON.parse(document.getElementById("data").textContent);
const PARTS = [
  ["compute", "Compute", "kernels other than communication, and memsets"],
  ["comm", "Communication only", "communication kernels without computation"],
  ["copy", "Copy only", "memory copies with neither running"],
  ["late", "Idle, host late", "the next kernel was launched after the device had run dry"],
  ["queued", "Idle, queued", "the next kernel was launched in time and waited for something else"],
  ["unknown", "Idle, unknown", "no launch is recorded for the next kernel, or nothing follows"],
];
const RANK_PARTS = [
  ["compute", "Compute", "kernels other than communication; on a CPU, operators"],
  ["comm", "Communication", "collectives with nothing else running, once all ranks have arrived"],
  ["await", "Waiting for ranks", "in a collective that the last rank has not reached yet, with nothing else running"],
  ["copy", "Copies", "memory copies with neither running"],
  ["queued", "Idle", "the rest of the step; on a CPU, Python"],
];
const SPAN_WORDS = {
  compute: "kernels", comm: "communication", copy: "copies", op: "operators",
  wait: "waits for the device", python: "Python", loader: "data loading", step: "steps",
};
const NB = "\u00a0"; // a number stays with its unit
const glued = (text) => text.replace(/(\d) (?=(?:%|[nµm]?s|[KMGT]i?B|B)(?:\W|$))/g, `$1${NB}`);
const say = (text) => { document.getElementById("announced").textContent = text; };

// -- numbers as people read them ----------------------------------------------------------------

const grouped = new Intl.NumberFormat("en-US");
const count = (n) => (n === null || n === undefined ? "–" : grouped.format(n));
const many = (n, one, more) => `${count(n)} ${n === 1 ? one : more || `${one}s`}`;
function digits(x) {
  const size = Math.abs(x);
  return size >= 99.95 ? x.toFixed(0) : size >= 9.995 ? x.toFixed(1) : x.toFixed(2);
}
function ns(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return `0${NB}ns`;
  for (const [limit, divisor, unit] of [[1e3, 1, "ns"], [1e6, 1e3, "µs"], [1e9, 1e6, "ms"]]) {
    if (size < limit * 0.9995) {
      return `${divisor === 1 && Number.isInteger(value) ? value : digits(value / divisor)}${NB}${unit}`;
    }
  }
  return `${digits(value / 1e9)}${NB}s`;
}
const per = (cost) => (cost.per === "step" ? "per step" : "in the window");
const ms = (value) => (value === null ? "–" : ns(value * 1e6));
function share(ratio) {
  if (ratio === null || !Number.isFinite(ratio)) return "–";
  const percent = ratio * 100;
  return `${percent.toFixed((percent > 0 && percent < 9.95) || (percent >= 99.5 && percent < 99.95) ? 1 : 0)}${NB}%`;
}
function bytes(value) {
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return `${unit === "B" ? size : digits(size)}${NB}${unit}`;
    size /= 1024;
  }
  return `${digits(size)}${NB}TiB`;
}
/** A span of numbers with one unit where both share it: "9.10–11.9 ms". */
function between(low, high, show) {
  const [a, b] = [show(low), show(high)];
  if (a === b) return a;
  const [left, unit] = a.split(NB);
  return low === 0 || b.endsWith(NB + unit) ? `${left}–${b}` : `${a} – ${b}`;
}

// -- elements -----------------------------------------------------------------------------------

function h(tag, props, ...kids) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (key === "on") for (const [type, act] of Object.entries(value)) node.addEventListener(type, act);
    else if (key === "style") for (const [name, text] of Object.entries(value)) node.style.setProperty(name, text);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...kids.flat(3).filter((kid) => kid !== null && kid !== undefined && kid !== false && kid !== ""));
  return node;
}
/** An SVG element; its colours are classes, so that the theme decides. */
function shape(tag, props, ...kids) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
  node.append(...kids);
  return node;
}
const section = (id, title, sub, ...kids) =>
  h("section", { id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title), sub && h("p", { class: "sub" }, sub), kids);
const pairs = (rows) => h("dl", { class: "pairs" }, rows.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]));
/** Short text, the whole of it on demand. */
const foldable = (short, full) => short === full ? h("code", {}, short)
  : h("details", { class: "fold" }, h("summary", { title: full }, h("code", {}, short)), h("code", {}, full));

// -- colours of the theme, for the canvas -------------------------------------------------------

let palette = null;
function colours() {
  if (palette) return palette;
  const probe = h("span", { hidden: true });
  document.body.append(probe);
  const pick = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
  palette = { ink: pick("--ink"), soft: pick("--soft"), line: pick("--line"), sunk: pick("--sunk"),
    card: pick("--card"), mark: pick("--mark"), wash: pick("--mark-wash"), onFill: pick("--on-fill"),
    font: getComputedStyle(document.body).fontFamily };
  for (const kind of DATA.classes) palette[kind] = pick(`--fill-${kind}`);
  probe.remove();
  return palette;
}

// -- pictures of a stretch of time --------------------------------------------------------------

const AXIS = 20, LABEL = 15, BAR = 19, GAP = 7, MARK = 21;

/** Unpacked lanes: parallel arrays of start, end, class and name. */
function unpack(packed) {
  const n = packed.spans.length / 4;
  const lane = { label: packed.label, kind: packed.kind, n, start: new Float64Array(n),
    end: new Float64Array(n), kindOf: new Uint8Array(n), name: new Uint32Array(n) };
  let at = 0;
  for (let i = 0; i < n; i++) {
    at += packed.spans[4 * i];
    lane.start[i] = at;
    lane.end[i] = at + packed.spans[4 * i + 1];
    lane.kindOf[i] = packed.spans[4 * i + 2];
    lane.name[i] = packed.spans[4 * i + 3];
  }
  return lane;
}
function marksOf(finding) {
  const flat = finding.place.marks, list = [];
  for (let i = 0; i < flat.length; i += 2) list.push([flat[i], flat[i] + flat[i + 1]]);
  return list;
}
/** Rows of a picture with their heights: lanes first, then one row of marks per finding. */
function layout(lanes, findings, axis) {
  const rows = [];
  let y = axis ? AXIS : 2;
  for (const lane of lanes) {
    rows.push({ lane, y: y + LABEL, h: BAR });
    y += LABEL + BAR + GAP;
  }
  if (findings.length && axis) y += 4;
  for (const finding of findings) {
    rows.push({ finding, y, h: MARK });
    y += MARK + 4;
  }
  return { rows, height: y + 2 };
}
function ticks(t0, t1, width) {
  const raw = (t1 - t0) / Math.max(2, width / 110);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => power * factor >= raw);
  const list = [];
  for (let t = Math.ceil(t0 / step) * step; t <= t1; t += step) list.push(t);
  return [list, step];
}
function tickText(t, step) {
  const [divisor, unit] = step >= 1e9 ? [1e9, "s"] : step >= 1e6 ? [1e6, "ms"] : step >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${grouped.format(Math.round(t / divisor))} ${unit}`;
}
/** Cut a text to a width in pixels. */
function fit(ctx, text, width) {
  if (width < 14) return "";
  if (ctx.measureText(text).width <= width) return text;
  let keep = Math.floor(text.length * width / ctx.measureText(text).width);
  while (keep > 1 && ctx.measureText(`${text.slice(0, keep)}…`).width > width) keep--;
  return keep > 1 ? `${text.slice(0, keep)}…` : "";
}
function paint(canvas, plan, t0, t1, { axis, marks, focus }) {
  const c = colours(), width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
  if (!width) return;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(plan.height * scale);
  canvas.style.height = `${plan.height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  ctx.fillStyle = c.card;
  ctx.fillRect(0, 0, width, plan.height);
  const x = (t) => (t - t0) / (t1 - t0) * width;
  const lastLane = plan.rows.filter((row) => row.lane).at(-1);
  const floor = lastLane ? lastLane.y + BAR : plan.height;
  if (axis) {
    const [list, step] = ticks(t0, t1, width);
    ctx.font = `11px ${c.font}`;
    for (const t of list) {
      ctx.fillStyle = c.line;
      ctx.fillRect(Math.round(x(t)), AXIS - 5, 1, plan.height);
      ctx.fillStyle = c.soft;
      const text = tickText(t, step);
      if (x(t) + 4 + ctx.measureText(text).width < width) ctx.fillText(text, x(t) + 4, 12);
    }
  }
  for (const [from, to] of marks) {
    if (to < t0 || from > t1) continue;
    ctx.fillStyle = c.wash;
    ctx.fillRect(x(from), axis ? AXIS : 0, Math.max(1.5, x(to) - x(from)), floor - (axis ? AXIS : 0) + 3);
  }
  for (const row of plan.rows) {
    if (row.lane) paintLane(ctx, c, row, x, t0, t1, width);
    else paintMarks(ctx, c, row, x, t0, t1, width, focus);
  }
  for (const [from, to] of marks) {
    if (to < t0 || from > t1) continue;
    ctx.fillStyle = c.mark;
    ctx.fillRect(x(from), floor + 3, Math.max(2, x(to) - x(from)), 3);
  }
}
function paintLane(ctx, c, { lane, y, h: height }, x, t0, t1, width) {
  ctx.font = `11px ${c.font}`;
  ctx.fillStyle = c.soft;
  ctx.fillText(fit(ctx, lane.label, width - 10), 5, y - 4);
  ctx.fillStyle = c.sunk;
  ctx.fillRect(0, y, width, height);
  for (let i = 0; i < lane.n; i++) {
    if (lane.end[i] < t0 || lane.start[i] > t1) continue;
    const left = Math.max(-2, x(lane.start[i])), wide = Math.min(width + 2, x(lane.end[i])) - left;
    const kind = DATA.classes[lane.kindOf[i]];
    ctx.fillStyle = c[kind];
    // a hairline keeps neighbours apart once there is room for it
    ctx.fillRect(left, y, Math.max(0.6, wide > 4 ? wide - 0.7 : wide), height);
    if (wide > 26 && lane.name[i]) {
      ctx.fillStyle = c.onFill;
      const from = Math.max(left, 0);
      ctx.fillText(fit(ctx, DATA.names[lane.name[i]], left + wide - from - 8), from + 4, y + 13);
    }
  }
}
function paintMarks(ctx, c, { finding, y }, x, t0, t1, width, focus) {
  const on = focus === finding;
  ctx.globalAlpha = focus && !on ? 0.45 : 1;
  ctx.fillStyle = c.line;
  ctx.fillRect(0, y + 16, width, 1);
  ctx.fillStyle = c.mark;
  for (const [from, to] of finding.list) {
    if (to < t0 || from > t1) continue;
    const left = Math.max(-2, x(from));
    ctx.fillRect(left, y + 13, Math.max(2, Math.min(width + 2, x(to)) - left), 7);
  }
  ctx.globalAlpha = 1;
  ctx.font = `${on ? 600 : 400} 11px ${c.font}`;
  ctx.fillStyle = on ? c.mark : c.soft;
  ctx.fillText(fit(ctx, `${finding.code} ${finding.name}`, width - 10), 5, y + 9);
}

// -- the timeline -------------------------------------------------------------------------------

const MOST_ROWS = 6;

function timeline(model) {
  const { wall, lanes, findings } = model;
  const canvas = h("canvas", { id: "time", tabindex: "0", role: "application",
    "aria-roledescription": "timeline", "aria-describedby": "time-keys",
    "aria-label": `Timeline of ${ns(wall)}: ${lanes.map((lane) => lane.label).join(", ")}` });
  const tip = h("div", { class: "tip", hidden: true });
  const shown = h("span", { class: "tag", "aria-hidden": "true" });
  const marked = findings.filter((finding) => finding.list.length);
  let t0 = 0, t1 = wall, focus = null, at = -1, all = marked.length <= MOST_ROWS, plan, queued = false;

  const rows = () => {
    const list = all ? marked : marked.slice(0, MOST_ROWS);
    return focus && !list.includes(focus) && focus.list.length ? [...list, focus] : list;
  };
  function draw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; now(); });
  }
  function now() {
    plan = layout(lanes, rows(), true);
    paint(canvas, plan, t0, t1, { axis: true, marks: focus ? focus.list : [], focus });
    shown.textContent = `${ns(t1 - t0)} of ${ns(wall)} shown`;
  }
  function view(from, to) {
    const least = Math.min(wall, 200), span = Math.min(wall, Math.max(least, to - from));
    t0 = Math.max(0, Math.min(wall - span, from + (to - from - span) / 2));
    t1 = t0 + span;
    tip.hidden = true;
    draw();
  }
  const zoom = (factor, where = (t0 + t1) / 2) =>
    view(where - (where - t0) * factor, where + (t1 - where) * factor);
  const pan = (part) => { const by = (t1 - t0) * part; view(t0 + by, t1 + by); };
  const timeAt = (px) => t0 + px / canvas.clientWidth * (t1 - t0);

  function hit(px, py) {
    const row = plan.rows.find((each) => py >= each.y - (each.lane ? LABEL : 2) && py <= each.y + each.h + 2);
    if (!row) return null;
    const t = timeAt(px), slack = (t1 - t0) / canvas.clientWidth * 3;
    if (row.finding) {
      const mark = row.finding.list.find(([from, to]) => t >= from - slack && t <= to + slack);
      return { row, finding: row.finding, mark };
    }
    let best = -1, least = Infinity;
    for (let i = 0; i < row.lane.n; i++) {
      if (row.lane.start[i] - slack > t || row.lane.end[i] + slack < t) continue;
      const size = row.lane.end[i] - row.lane.start[i];
      if (size <= least) { least = size; best = i; }
    }
    return { row, span: best };
  }
  function describe(found) {
    if (!found) return "";
    if (found.finding) {
      const { code, title } = found.finding;
      return found.mark ? `${code} ${title}: ${ns(found.mark[1] - found.mark[0])} at ${ns(found.mark[0])}` : `${code} ${title}`;
    }
    const lane = found.row.lane, i = found.span;
    if (i < 0) return lane.kind === "device" ? `${lane.label}: idle here` : "";
    const name = DATA.names[lane.name[i]] || SPAN_WORDS[DATA.classes[lane.kindOf[i]]];
    return `${name} · ${ns(lane.end[i] - lane.start[i])} at ${ns(lane.start[i])} · ${SPAN_WORDS[DATA.classes[lane.kindOf[i]]]}`;
  }
  function point(px, py, loud) {
    const found = hit(px, py), text = describe(found);
    tip.hidden = !text;
    if (text) {
      tip.textContent = text;
      const left = Math.min(px + 12, canvas.clientWidth - tip.offsetWidth - 6);
      const below = py + 18 + tip.offsetHeight < canvas.clientHeight;
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${below ? py + 18 : Math.max(2, py - tip.offsetHeight - 8)}px`;
      if (loud) say(text);
    }
    return found;
  }
  function select(finding, zoomed = true) {
    focus = finding;
    at = -1;
    if (finding && zoomed) visit(0);
    else draw();
  }
  /** Zoom to the n-th of a finding's intervals, longest first for the first visit. */
  function visit(n) {
    if (!focus) focus = marked[0] || null;
    if (!focus) return;
    const list = focus.list;
    at = (n + list.length) % list.length;
    const [from, to] = list[at], around = Math.max((to - from) * 2.5, 2000);
    view(from - around, to + around);
    say(`${focus.code}, interval ${at + 1} of ${list.length}: ${ns(to - from)} at ${ns(from)}`);
  }

  // pointers: drag pans, two fingers zoom, a tap tells
  const held = new Map();
  let moved = 0, pinch = 0;
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    held.set(event.pointerId, place(event));
    moved = 0;
    canvas.setPointerCapture(event.pointerId);
    if (held.size === 2) pinch = spread();
  });
  const spread = () => { const [a, b] = [...held.values()]; return Math.max(8, Math.abs(a[0] - b[0])); };
  canvas.addEventListener("pointermove", (event) => {
    const spot = place(event), before = held.get(event.pointerId);
    if (!before) { if (event.pointerType === "mouse") point(...spot); return; }
    held.set(event.pointerId, spot);
    if (held.size === 2) {
      const [a, b] = [...held.values()], next = spread();
      zoom(pinch / next, timeAt((a[0] + b[0]) / 2));
      pinch = next;
      moved = 99;
    } else {
      moved += Math.abs(spot[0] - before[0]);
      if (moved > 3) {
        canvas.classList.add("held");
        pan((before[0] - spot[0]) / canvas.clientWidth);
      }
    }
  });
  const release = (event) => {
    const spot = held.get(event.pointerId);
    held.delete(event.pointerId);
    canvas.classList.remove("held");
    if (!spot || moved > 3 || event.type === "pointercancel") return;
    const found = point(...spot, true);
    if (found && found.finding) { select(found.finding, false); openCard(found.finding); }
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(place(event)[0])));
  canvas.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * 0.004), timeAt(place(event)[0]));
    else if (sideways) pan((event.deltaX || event.deltaY) / canvas.clientWidth);
    else return; // an ordinary wheel scrolls the page
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), a: () => pan(-0.15), d: () => pan(0.15),
      "+": () => zoom(0.6), "=": () => zoom(0.6), w: () => zoom(0.6), ArrowUp: () => zoom(0.6),
      "-": () => zoom(1.6), s: () => zoom(1.6), ArrowDown: () => zoom(1.6),
      0: () => view(0, wall), Home: () => view(0, wall), n: () => visit(at + 1), p: () => visit(at - 1),
      Escape: () => { select(null); view(0, wall); },
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    if (!["n", "p"].includes(event.key)) say(`${ns(t1 - t0)} shown, from ${ns(Math.max(0, t0))}`);
  });

  const button = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, on: { click: act } }, text);
  const used = [...new Set(lanes.flatMap((lane) => [...new Set(lane.kindOf)]))].sort().map((kind) => DATA.classes[kind]);
  const node = section("timeline", "The window in time",
    `${ns(wall)}: ${model.summary.basis}. Spans closer than a screen can show are merged; empty device lane is idle time.`,
    h("div", { class: "tools" },
      button("−", "Zoom out", () => zoom(1.6)), button("+", "Zoom in", () => zoom(0.6)),
      button("←", "Earlier", () => pan(-0.3)), button("→", "Later", () => pan(0.3)),
      button("Whole window", "Show the whole window", () => { select(null); view(0, wall); }),
      marked.length ? button("Next marked", "Next interval of the selected finding", () => visit(at + 1)) : null,
      shown),
    h("div", { class: "frame" }, canvas, tip),
    h("ul", { class: "legend", "aria-label": "Colours of the timeline" },
      used.map((kind) => h("li", {}, h("i", { class: kind }), SPAN_WORDS[kind])),
      marked.length ? h("li", {}, h("i", { class: "own" }), "intervals of a finding") : null),
    marked.length > MOST_ROWS ? h("p", { class: "more" },
      h("button", { type: "button", "aria-expanded": "false", on: { click: (event) => {
        all = !all;
        event.target.textContent = all ? "Mark the first findings only" : `Mark all ${marked.length} findings`;
        event.target.setAttribute("aria-expanded", String(all));
        draw();
      } } }, `Mark all ${marked.length} findings`)) : null,
    h("p", { class: "keys", id: "time-keys" }, "Drag or ", h("kbd", {}, "←"), " ", h("kbd", {}, "→"),
      " to move, pinch, ", h("kbd", {}, "Ctrl"), "+wheel or ", h("kbd", {}, "+"), " ", h("kbd", {}, "−"),
      " to zoom, ", h("kbd", {}, "n"), " ", h("kbd", {}, "p"), " for the next or previous marked interval, ",
      h("kbd", {}, "0"), " for the whole window. Click a row of marks to open its finding."));
  return { node, draw: now, select, view, show: () => { canvas.focus({ preventScroll: true }); node.scrollIntoView(); } };
}

// -- findings -----------------------------------------------------------------------------------

function saving(cost) {
  if (!cost) return h("div", { class: "gain" }, "No time saving claimed");
  const wide = (part) => `${Math.max(0, Math.min(1, part || 0)) * 100}%`;
  const text = `${between(cost.lowMs, cost.highMs, ms)} of ${ms(cost.ofMs)} ${per(cost)}`;
  return h("div", { class: "gain" },
    h("div", { class: "range", role: "img", "aria-label": `Saving ${text}` },
      h("i", { class: "may", style: { width: wide(cost.shareHigh) } }),
      h("i", { class: "sure", style: { width: wide(cost.shareLow) } })),
    text, " ", h("span", { class: "whole" }, `(${between(cost.shareLow, cost.shareHigh, share)})`));
}
function evidenceText(key, value) {
  if (value && typeof value === "object") {
    // the values of a list or table carry the unit of its key
    const shown = value.pairs ? value.pairs.map(([name, item]) => `${name} ${evidenceText(key, item)}`)
      : value.first.map((item) => evidenceText(key, item));
    const rest = value.n - shown.length;
    return `${shown.join(", ")}${rest > 0 ? `, and ${count(rest)} more` : ""}`;
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return value === null ? "not known" : String(value);
  if (/_ns(_|$)/.test(key)) return ns(value);
  if (/_us(_|$)/.test(key)) return ns(value * 1e3);
  if (/_ms(_|$)/.test(key)) return ms(value);
  if (/(^|_)tflops(_|$)/.test(key)) return `${Number(value.toPrecision(3))}${NB}TFLOP/s`;
  if (/(^|_)gb_per_s(_|$)/.test(key)) return `${Number(value.toPrecision(3))}${NB}GB/s`;
  if (/bytes/.test(key)) return bytes(value);
  if (/(_share|_ratio|^share)/.test(key) && Math.abs(value) <= 1) return share(value);
  // ids are addresses, not amounts
  if (/(^|_)(ids?|event|events|line|pid|tid)$/.test(key)) return String(value);
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(4)));
}
const evidenceName = (key) => key.replace(/^n_/, "").replace(/_(gb_per_s|tflops|ns|us|ms|bytes)(?=_|$)/, "").replace(/_per_window$/, "_in_the_window").replaceAll("_", " ");
/** The steps of a place by the number in their names, runs joined: "550–554". */
function stepList(place, model) {
  const names = new Map(model.steps.map(([index, name]) => [index, name.replace(/^ProfilerStep#/, "")]));
  const runs = [];
  for (const step of place.steps) {
    const run = runs.at(-1);
    if (run && step === run[1] + 1) run[1] = step;
    else runs.push([step, step]);
  }
  const word = (step) => names.get(step) || String(step);
  const text = runs.slice(0, 8).map(([a, b]) => (a === b ? word(a) : `${word(a)}–${word(b)}`)).join(", ");
  return runs.length > 8 || place.steps.length < place.nSteps ? `${text} … (${many(place.nSteps, "step")})` : text;
}
const frameText = (frame) => `${frame.file}:${frame.line}${frame.function ? ` in ${frame.function}` : ""}`;

/** What is known of a call's line when it is not exact. */
function unsure({ lines }) {
  const first = "first line of the function";
  if (!lines.length) return first;
  return `${first}; ${lines.length > 1 ? "one of lines" : "probably line"} ${lines.join(", ")}`;
}

/** A stack, innermost first; a deep one folds its outer part. */
function frames(stack) {
  const list = (some) => h("ol", { class: "chain stacked" }, some.map((frame) => h("li", {}, h("code", {}, frameText(frame)))));
  if (stack.length <= 6) return list(stack);
  return [list(stack.slice(0, 5)), h("details", { class: "how" }, h("summary", {}, `${stack.length - 5} outer frames`), list(stack.slice(5)))];
}

function copyable(code) {
  const pre = h("pre", {}, h("code", {}, code));
  const button = h("button", { type: "button", "aria-label": "Copy the code" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code);
    } catch {
      getSelection().selectAllChildren(pre); // clipboard refused: leave it selected for Ctrl+C
      button.textContent = "Selected";
      return;
    }
    button.textContent = "Copied";
    say("Code copied");
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
  return h("div", { class: "code" }, pre, button);
}

/** The stretch a finding's picture shows: the step around its longest interval, or its surroundings. */
function stretch(finding, model) {
  const [from, to] = finding.list.reduce((best, mark) => mark[1] - mark[0] > best[1] - best[0] ? mark : best);
  const step = model.steps.find(([, , start, end]) => from >= start && from < end);
  if (step) return [step[2], step[3], step[1]];
  // closer than this the lanes, merged to what a screen shows of the whole window, have no detail
  const around = Math.max((to - from) * 4, model.wall / 60);
  return [Math.max(0, from - around), Math.min(model.wall, to + around), ""];
}
function picture(finding, model) {
  const [t0, t1, step] = stretch(finding, model);
  const own = finding.place.lane && model.lanes.find((lane) => lane.label === finding.place.lane);
  const device = model.lanes.find((lane) => lane.kind === "device");
  const host = model.lanes.find((lane) => lane.kind === "thread");
  const lanes = [...new Set([device, own || host, own && own !== device ? null : host])].filter(Boolean);
  const inside = finding.list.filter(([from, to]) => to > t0 && from < t1);
  const sum = inside.reduce((total, [from, to]) => total + Math.min(to, t1) - Math.max(from, t0), 0);
  const text = `${step || "Around the longest interval"}: ${many(inside.length, "interval")}${finding.place.costliest ? ` of the ${count(finding.list.length)} costliest` : ""}, ${ns(sum)} of the ${ns(t1 - t0)} shown`;
  const canvas = h("canvas", { role: "img", "aria-label": `${finding.code}: ${text}` });
  finding.draw = () => paint(canvas, layout(lanes, [], false), t0, t1, { axis: false, marks: inside, focus: null });
  return h("figure", { class: "wide" }, h("div", { class: "frame" }, canvas), h("figcaption", {}, text, ". ",
    h("button", { type: "button", on: { click: () => { model.time.select(finding); model.time.show(); } } }, "Show on the timeline")));
}

function card(finding, model) {
  const { place, cost, fix } = finding;
  const node = h("details", { class: "finding", id: finding.id },
    h("summary", {},
      h("div", {},
        h("h3", {}, finding.title),
        h("p", { class: "meta" }, h("span", { class: `sev ${finding.severity}` }, finding.severity), " ",
          h("span", { class: "mono" }, finding.code), ` ${finding.name} · ${finding.certainty}`)),
      saving(cost)));
  const where = [];
  if (place.frame) {
    where.push(["Line", h("span", {}, h("code", {}, frameText(place.frame), place.frame.exact ? "" : ` (${unsure(place.frame)})`),
      place.source.length ? h("pre", {}, place.source.join("\n")) : null)]);
  }
  if (place.module) where.push(["Module", h("code", {}, place.module)]);
  if (finding.ranks) where.push(["Ranks", h("span", {}, finding.ranks)]);
  if (place.lane) where.push(["Lane", h("span", {}, place.lane)]);
  if (place.nSteps) {
    where.push(["Steps", stepList(place, model)]);
  }
  if (finding.nEvents) where.push(["Events", count(finding.nEvents)]);
  const facts = [];
  if (cost) {
    const covers = cost.coverage === null ? "" : `, ${share(cost.coverage)} interval`;
    facts.push(["Basis", `${cost.basis}, grade ${cost.grade}${covers}`], ["Method", cost.method], ["Plain sum of durations", ms(cost.naiveMs)]);
  }
  for (const [key, value] of finding.evidence) facts.push([evidenceName(key), evidenceText(key, value)]);
  node.append(h("div", { class: "inside" },
    h("p", { class: "message wide" }, glued(finding.message)),
    finding.list.length && model.lanes.length ? picture(finding, model) : null,
    h("div", {},
      h("h4", {}, "Fix"), h("p", {}, fix.text), fix.code ? copyable(fix.code) : null,
      fix.link ? h("p", { class: "how" }, h("a", { href: fix.link, rel: "noopener noreferrer", target: "_blank" }, fix.link)) : null,
      finding.alsoExplains.length ? [h("h4", {}, "Also explains"), h("p", {}, finding.alsoExplains.join(", "))] : null,
      h("h4", {}, "Evidence"), pairs(facts)),
    h("div", {},
      h("h4", {}, "Where"), pairs(where),
      place.ops.length ? [h("h4", {}, "Chain of calls"), h("ol", { class: "chain" }, place.ops.map((op) => h("li", {}, h("code", {}, op))))] : null,
      place.stack.length ? [h("h4", {}, "Python stack, innermost first"), frames(place.stack)] : null,
      place.examples.length ? [h("h4", {}, "Examples, to look up in a viewer"), place.examples.map((each) =>
        h("p", {}, foldable(each.short, each.name), h("span", { class: "how" },
          ` · ${ns(each.durNs)} at ${ns(each.startNs)} · ts ${each.ts} µs, pid ${each.pid}, tid ${each.tid}, event ${each.event}`)))] : null)));
  node.addEventListener("toggle", () => { if (node.open && finding.draw) finding.draw(); });
  finding.card = node;
  return node;
}
function openCard(finding) {
  finding.card.open = true;
  finding.card.querySelector("summary").focus({ preventScroll: true });
  finding.card.scrollIntoView({ block: "nearest" });
}
function findingsSection(result, model) {
  if (!model.findings.length) return null;
  const extra = result.nFindings - model.findings.length;
  const joint = result.joint;
  const cards = model.findings.map((finding) => card(finding, model));
  cards[0].open = true;
  const others = cards.filter((_, i) => !model.findings[i].cost);
  const toggle = h("button", { type: "button", on: { click: () => {
    const open = !cards.every((each) => each.open);
    for (const each of cards) each.open = open;
    toggle.textContent = open ? "Close all" : "Open all";
  } } }, "Open all");
  return section("findings", "What to fix, largest saving first",
    joint ? `Together ${between(joint.lowMs, joint.highMs, ms)} of ${ms(joint.ofMs)} ${per(joint)} (${between(joint.shareLow, joint.shareHigh, share)}), ${result.job ? "at least the largest single saving, at most what the slowest rank can save" : "each millisecond counted once"}; ${joint.basis}, grade ${joint.grade}. Solid bar: the low end; hatched: up to the high end.`
      : "Each saving has its own denominator, shown next to it.",
    cards.length > 1 ? h("div", { class: "tools" }, toggle) : null,
    cards.filter((_, i) => model.findings[i].cost),
    others.length ? h("p", { class: "more" }, "Without a saving in time:") : null, others,
    extra > 0 ? h("p", { class: "more" }, `${many(extra, "more finding")} in the JSON report.`) : null);
}

// -- where the time goes ------------------------------------------------------------------------

const split = (classes) => PARTS.map(([kind, label, what], i) => ({ kind, label, what, ns: classes[i + 1], part: classes[0] ? classes[i + 1] / classes[0] : 0 }));

function accountSection(model) {
  const devices = model.summary.devices;
  if (!devices.length) {
    if (model.result.trace.vendor === "cpu") return null;
    return section("account", "Where the time goes", null,
      h("p", {}, `No accelerator was recorded, so there is no busy or idle time to split. The window is ${ns(model.wall)}: ${model.summary.basis}.`));
  }
  return section("account", "Where the time goes",
    `Shares of ${model.summary.nSteady ? `${many(model.summary.nSteady, model.result.trace.judgedStep)} of ${ms(model.summary.stepMs)}` : `the window, ${ns(model.wall)}`} (${model.summary.basis}). Per device, over the union of its streams.`,
    devices.map((device) => {
      const every = device.classes ? split(device.classes) : [], parts = every.filter((part) => part.ns > 0);
      const idle = every.slice(3).reduce((sum, part) => sum + part.ns, 0);
      return h("div", { class: "device" },
        h("p", {}, h("b", {}, `${model.result.trace.deviceWord} ${device.device}`), device.name ? ` ${device.name}` : "",
          device.classes ? ` · busy ${share(1 - idle / device.classes[0])}, idle ${share(idle / device.classes[0])}` : ` · busy and idle time not known: ${device.unknown}`, ` · ${many(device.nKernels, "kernel")}, ${many(device.nCopies, "copy", "copies")}, ${many(device.nStreams, "stream")}`,
          device.commNs ? ` · communication ${ns(device.commNs)}, exposed or not` : "",
          device.nOrphans ? ` · ${many(device.nOrphans, "row")} without a recorded launch` : ""),
        h("div", { class: "stack", role: "img", "aria-label": parts.map((part) => `${part.label} ${share(part.part)}`).join(", ") },
          parts.map((part) => h("i", { class: part.kind, title: `${part.label}: ${ns(part.ns)}, ${share(part.part)}`, style: { width: `${part.part * 100}%` } }))),
        h("ul", { class: "legend" }, parts.map((part) =>
          h("li", { title: part.what }, h("i", { class: part.kind }), part.label, " ", h("b", {}, share(part.part)), " ", h("span", { class: "tag" }, ns(part.ns))))));
    }));
}

function stepsSection(model) {
  const steps = model.steps;
  if (!steps.length) return null;
  const walls = steps.map((step) => step[3] - step[2]), divided = steps.some((step) => step[5]);
  const steady = model.summary.stepMs ? model.summary.stepMs * 1e6 : null;
  // an outlier is cut, not allowed to flatten all others
  const top = steady ? Math.min(Math.max(...walls), 4 * steady) : Math.max(...walls);
  const text = h("p", { class: "say", id: "step-say" });
  let now = -1;
  const bars = steps.map(([, , start, end, isSteady, classes], i) => {
    const wall = walls[i], high = Math.min(1, wall / top);
    const kids = classes ? split(classes).filter((part) => part.ns > 0).map((part) =>
      h("i", { class: part.kind, style: { height: `${part.part * 100}%` } })) : h("i", { class: divided ? "unknown" : "op", style: { height: "100%" } });
    return h("div", { class: `${isSteady ? "" : "odd"} ${wall > top * 1.001 ? "cut" : ""}`, style: { height: `${high * 100}%` },
      on: { mouseenter: () => tell(i), click: () => { tell(i); model.time.view(start, end); } } }, kids);
  });
  function tell(i) {
    if (now >= 0) bars[now].classList.remove("now");
    now = i;
    bars[i].classList.add("now");
    const [, name, , , isSteady, classes] = steps[i];
    const parts = classes ? split(classes).filter((part) => part.ns > 0).map((part) => `${part.label.toLowerCase()} ${share(part.part)}`).join(", ") : divided ? "no device work recorded" : "";
    text.textContent = `${name}: ${ns(walls[i])}${isSteady ? "" : ", not counted as steady"}${parts ? ` · ${parts}` : ""}`;
  }
  const chart = h("div", { class: `steps ${steps.length > 60 ? "many" : ""}`, tabindex: "0", role: "application",
    "aria-label": `${many(steps.length, "step")} as stacked bars, use the arrow keys`, "aria-describedby": "step-say",
    on: { keydown: (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) { event.preventDefault(); tell(Math.max(0, Math.min(steps.length - 1, now + move))); say(text.textContent); }
      if (event.key === "Enter" && now >= 0) { model.time.view(steps[now][2], steps[now][3]); model.time.show(); }
    } } },
    bars, steady && steady < top ? h("div", { class: "median", style: { bottom: `${steady / top * 100}%` } }) : null);
  const slowest = walls.indexOf(Math.max(...walls));
  tell(slowest);
  const shown = steps.length < model.summary.nSteps ? `${count(steps.length)} of ${count(model.summary.nSteps)} steps, the first. ` : "";
  const shownParts = divided ? PARTS : [], head = ["Step", "Wall", ...shownParts.map(([, label]) => label)];
  const labels = steps.length > 16 ? null : h("div", { class: "under", "aria-hidden": "true" },
    steps.map(([, name], i) => h("span", {}, `${name.replace(/^ProfilerStep#/, "#")} `, h("b", {}, ns(walls[i])))));
  return section("steps", "Step by step",
    `${shown}Each bar is the wall time of one step${divided ? ", split by class; shares are of that step" : ""}. Full height ${ns(top)}${steady ? `; dashed: the mean of ${many(model.summary.nSteady, model.result.trace.judgedStep)}, ${ms(model.summary.stepMs)}` : ""}.${steps.every((step) => step[4]) ? "" : " Pale: not steady."}${walls.some((wall) => wall > top * 1.001) ? " Dotted top: taller than drawn." : ""}`,
    chart, labels, text,
    divided && h("ul", { class: "legend" }, shownParts.filter((_, k) => steps.some((step) => step[5] && step[5][k + 1])).map(([kind, label, what]) => h("li", { title: what }, h("i", { class: kind }), label))),
    h("details", { class: "more" }, h("summary", {}, "The same as a table"),
      scroller("Steps", h("table", {},
        h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, steps.map(([, name, , , isSteady, classes], i) => h("tr", {},
          h("td", {}, name, isSteady ? "" : " (not steady)"), h("td", {}, ns(walls[i])),
          shownParts.map((part, k) => h("td", {}, classes ? `${ns(classes[k + 1])}, ${share(classes[0] ? classes[k + 1] / classes[0] : 0)}` : "–")))))), true)));
}

function idleSection(result, model) {
  const idle = result.idle;
  if (!idle || !idle.idleNs || !model.findings.length) return null;
  const steady = model.summary.nSteady;
  const row = (label, kind, value) => h("div", { class: "cause" }, h("span", {}, label),
    h("span", { class: "track" }, h("i", { class: kind, style: { width: `${Math.min(1, value / idle.idleNs) * 100}%` } })),
    h("span", {}, `${ns(value)}, ${share(value / idle.idleNs)}`));
  return section("idle", "Idle time by cause",
    `Shares of the ${ns(idle.idleNs)} that ${model.result.trace.deviceWord} ${model.summary.devices[0].device} stood idle in ${steady ? `the ${many(steady, model.result.trace.judgedStep)}` : "the window"}. Each moment belongs to one finding.`,
    h("div", { class: "causes" },
      idle.causes.map(([index, value]) => {
        const finding = result.findings[index];
        const label = finding ? h("a", { href: `#${finding.id}`, on: { click: (event) => { event.preventDefault(); openCard(finding); } } }, `${finding.code} ${finding.name}`) : "a finding not shown here";
        return row(label, "own", value);
      }),
      row("Not explained by a finding", "rest", idle.restNs)));
}

// -- tables -------------------------------------------------------------------------------------

const scroller = (label, table, tall) => h("div", { class: `scroll${tall ? " tall" : ""}`, tabindex: "0", role: "region", "aria-label": label }, table);

/** A table sorted by clicking its head; columns are [label, cell, sort key]. */
function sortable(label, columns, rows, first) {
  const body = h("tbody", {});
  const heads = columns.map(([name], i) => h("th", { scope: "col" },
    h("button", { type: "button", on: { click: () => sort(i) } }, name)));
  let at = -1, down = true;
  function sort(i) {
    down = at === i ? !down : i > 0;
    at = i;
    const key = columns[i][2];
    const sorted = [...rows].sort((a, b) => (typeof key(a) === "string" ? key(a).localeCompare(key(b)) : key(a) - key(b)) * (down ? -1 : 1));
    heads.forEach((head, k) => k === i ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
    body.replaceChildren(...sorted.map((row) => h("tr", {}, columns.map(([, cell]) => h("td", {}, cell(row))))));
  }
  sort(first);
  return scroller(label, h("table", {}, h("caption", { class: "unseen" }, label), h("thead", {}, h("tr", {}, heads)), body), rows.length > 18);
}
const spark = (part) => [share(part), h("span", { class: "spark", "aria-hidden": "true" }, h("i", { style: { width: `${Math.min(1, part || 0) * 100}%` } }))];

// -- what `torchtriage run` saw of the stacks ----------------------------------------------------
const KINDS = { operators: "compute", Python: "python", files: "copy", compilation: "comm", "the loop": "compute",
  "other imports": "op", "before the loop": "loader", recording: "late", "after the loop": "wait", "garbage collection": "late" };
const kindOf = (kind) => KINDS[kind] || (kind.startsWith("wait") || kind === "sleeping" ? "wait" : "step");
function partsBar(parts, label) {
  return [
    h("div", { class: "parts", role: "img", "aria-label": `${label}: ${parts.map(([kind, part]) => `${kind} ${share(part)}`).join(", ")}` },
      parts.map(([kind, part]) => h("i", { class: kindOf(kind), style: { width: `${100 * part}%` }, title: `${kind} ${share(part)}` }))),
    h("p", { class: "legend" }, parts.map(([kind, part, took]) => h("span", {}, h("i", { class: kindOf(kind) }), ` ${kind} ${share(part)} (${ms(took)})  `))),
  ];
}
const linesTable = (lines) => lines.length ? h("div", { class: "scroll" }, h("table", {},
  h("thead", {}, h("tr", {}, ["Line", "Function", "Mostly", "Share"].map((name) => h("th", { scope: "col" }, name)))),
  h("tbody", {}, lines.map(([file, line, name, kind, part]) => h("tr", {},
    h("td", { class: "mono" }, `${file}:${line}`), h("td", { class: "mono" }, name), h("td", {}, kind), h("td", {}, spark(part))))))) : null;
function whereSection(result) {
  const { step, run } = result.where;
  if (!step && !run) return null;
  const rests = step && `${ms(step.ofMs)} per ${step.per}; ${step.nSteps ? `${many(step.nSteps, "step")}, ` : ""}${many(step.nLooks, "stack sample")} of the loop's thread, without the profiler. The parts add up to it.`;
  const deepest = step ? Math.max(0, ...step.flame.map(([depth]) => depth)) : 0;
  return section("where", step ? `Where the ${step.per}'s time goes` : "Where the run's time goes", rests,
    step ? partsBar(step.parts, `one ${step.per}`) : null,
    step ? linesTable(step.lines) : null,
    step && step.body.length ? [h("h3", {}, "Lines of the loop, with all that they call"), linesTable(step.body)] : null,
    step && step.gradients.length ? [h("h3", {}, "Lines whose gradients take the time of the backward pass"), linesTable(step.gradients)] : null,
    step && step.flame.length ? h("details", { open: true }, h("summary", {}, "Flame graph: callers above what they call"),
      h("div", { class: "scroll" }, h("div", { class: "flame", style: { height: `${18 * (deepest + 1)}px` } },
        step.flame.map(([depth, begin, part, name]) => h("span", { class: name.includes(":") ? "" : "library", title: `${name}: ${share(part)}, ${ms(part * step.ofMs)}`,
          style: { left: `${100 * begin}%`, width: `${100 * part}%`, top: `${18 * depth}px` } }, name))))) : null,
    run ? [h("h3", {}, `The whole run, ${ms(run.ofMs)}`), partsBar(run.parts, "the whole run"), linesTable(run.lines)] : null);
}
function servingSection(result) {
  const serving = result.serving;
  if (!serving) return null;
  return section("serving", `Steps of ${serving.engine} by phase`, serving.words,
    serving.rows.length ? h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, serving.columns.map((name) => h("th", { scope: "col" }, `${name[0].toUpperCase()}${name.slice(1)}`)))),
      h("tbody", {}, serving.rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))))) : null);
}
function deviceTimeSection(result) {
  const times = result.deviceTime.filter((time) => time.busyNs);
  if (!times.length) return null;
  return section("device-time", "Device time", `${times[0].words} ${times[0].mfu}`, times.map((time) => {
    const label = `Device time by ${time.by}`, rest = time.nRows - time.rows.length, each = (number) => number / time.nSteps;
    return [h("h3", {}, label), sortable(label, [
      [`${time.by[0].toUpperCase()}${time.by.slice(1)}`, (row) => foldable(row[0].length > 90 ? `${row[0].slice(0, 88)}…` : row[0], row[0]), (row) => row[0]],
      time.by === "category" ? null : ["Mostly", (row) => row[1], (row) => row[1]],
      [time.per === "step" ? "Per step" : "Time", (row) => ns(each(row[2])), (row) => row[2]],
      ["Share", (row) => spark(row[3]), (row) => row[3]],
      ["Launches", (row) => count(Math.round(10 * each(row[4])) / 10), (row) => row[4]],
      ["Mean", (row) => ns(row[5]), (row) => row[5] || 0],
      time.rows.some((row) => row[6] !== null) ? ["Of roof", (row) => row[6] === null ? "" : `${share(row[6])} ${row[7]}`, (row) => row[6] || 0] : null,
    ].filter(Boolean), time.rows, time.by === "category" ? 1 : 2), rest ? h("p", { class: "more" }, `${many(rest, "more row")} in the JSON.`) : null,
      time.captured ? h("p", { class: "more" }, `${time.captured[0].toUpperCase()}${time.captured.slice(1)}.`) : null, roofline(time)];
  }));
}
/** Rates over intensity, both on logarithmic axes: a point per row, as large as its time, under the device's roofs. */
function roofline(time) {
  const points = time.rows.filter((row) => row[8] && row[9] && row[3] >= 0.005);
  if (!time.roofs || time.roofs.length < 2 || !points.length) return null;
  const [memory, ...peaks] = time.roofs, top = Math.max(...peaks);
  const left = 56, right = 700, ceiling = 16, floor = 340;
  const xs = [Math.min(...points.map((row) => row[8]), top / memory / 4) / 2, Math.max(...points.map((row) => row[8]), top / memory) * 4];
  const ys = [Math.min(...points.map((row) => row[9]), top / 10) / 2, top * 1.6];
  const along = ([low, high], from, to) => (value) => from + (to - from) * Math.log(value / low) / Math.log(high / low);
  const x = along(xs, left, right), y = along(ys, floor, ceiling);
  const decades = Array.from({ length: 24 }, (_, k) => 10 ** (k - 8));
  const ticks = ([low, high]) => (high / low > 900 ? decades : decades.flatMap((value) => [value, 2 * value, 5 * value])).filter((value) => value >= low && value <= high);
  const text = (words, props) => shape("text", props, words);
  const parts = [
    ...ticks(xs).flatMap((value) => [shape("line", { class: "grid", x1: x(value), x2: x(value), y1: ceiling, y2: floor }),
      text(count(value), { x: x(value), y: floor + 16, "text-anchor": "middle" })]),
    ...ticks(ys).flatMap((value) => [shape("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      text(count(value), { x: left - 8, y: y(value) + 4, "text-anchor": "end" })]),
    text("operations per byte", { x: right, y: floor + 34, "text-anchor": "end" }),
    text("TFLOP/s", { x: left - 8, y: ceiling - 3, "text-anchor": "end" }),
  ];
  // the memory's roof ends where the highest peak begins
  const foot = Math.max(xs[0], ys[0] / memory), slope = [x(foot), y(foot * memory), x(top / memory), y(top)];
  const angle = Math.atan2(slope[3] - slope[1], slope[2] - slope[0]) * 180 / Math.PI;
  const middle = [(slope[0] + slope[2]) / 2, (slope[1] + slope[3]) / 2 - 7];
  parts.push(shape("line", { class: "roof", x1: slope[0], y1: slope[1], x2: slope[2], y2: slope[3] }),
    text(`${memory} TB/s`, { x: middle[0], y: middle[1], "text-anchor": "middle", transform: `rotate(${angle} ${middle[0]} ${middle[1]})` }));
  for (const peak of peaks) {
    parts.push(shape("line", { class: "roof", x1: x(peak / memory), x2: right, y1: y(peak), y2: y(peak) }),
      text(`${peak} TFLOP/s`, { x: right - 4, y: y(peak) - 6, "text-anchor": "end" }));
  }
  const kinds = { GEMM: "compute", attention: "comm", convolution: "copy" };
  // a name covers neither a point nor the rate of a roof
  const taken = [...peaks.map((peak) => [right - 90, y(peak) - 18, right, y(peak)]), ...points.map((row) => {
    const r = 3 + 20 * Math.sqrt(row[3]), [cx, cy] = [x(row[8]), y(row[9])];
    return [cx - r, cy - r, cx + r, cy + r];
  })];
  for (const row of points) {
    const r = 4 + 22 * Math.sqrt(row[3]), at = [x(row[8]), y(row[9])];
    parts.push(shape("circle", { class: `point ${kinds[row[1]] || "op"}`, cx: at[0], cy: at[1], r },
      shape("title", {}, `${row[0]}: ${share(row[3])} of the busy time, ${digits(row[9])} TFLOP/s at ${digits(row[8])} operations per byte${row[6] === null ? "" : `, ${share(row[6])} of the ${row[7]} roof`}`)));
  }
  for (const row of points.slice(0, 8)) {
    const words = row[0].length > 34 ? `${row[0].slice(0, 33)}…` : row[0], wide = 6.4 * words.length;
    const r = 8 + 22 * Math.sqrt(row[3]), [cx, cy] = [x(row[8]), y(row[9])];
    const places = [[cx + r, cy + 4, "start"], [cx, cy + r + 10, "middle"], [cx, cy - r, "middle"], [cx - r, cy + 4, "end"]];
    for (const [px, py, anchor] of places) {
      const from = anchor === "start" ? px : anchor === "end" ? px - wide : px - wide / 2, box = [from, py - 11, from + wide, py + 3];
      const free = taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
      if (box[0] < left || box[2] > right || box[1] < ceiling || box[3] > floor || !free) continue;
      taken.push(box);
      parts.push(text(words, { class: "name", x: px, y: py, "text-anchor": anchor }));
      break;
    }
  }
  const shown = Object.entries(kinds).filter(([kind]) => points.some((row) => row[1] === kind));
  return h("div", {}, h("h3", {}, `Roofline by ${time.by}`),
    h("div", { class: "scroll" }, shape("svg", { class: "roofline", viewBox: "0 0 712 380", role: "img",
      "aria-label": `Rates over operations per byte of ${many(points.length, time.by)} under the roofs of the device` }, ...parts)),
    h("ul", { class: "legend" }, shown.map(([kind, fill]) => h("li", {}, h("i", { class: fill }), kind))),
    h("p", { class: "more" }, "Products, convolutions and fused attention; the larger a point, the more of the busy time it takes (from 0.5 % on). Under the slope the memory is the roof, under the level lines the dense peak of a type."));
}
const gbps = (number) => number === null ? "–" : `${digits(number)}${NB}GB/s`;
function bandwidthSection(result) {
  const bandwidth = result.busBandwidth;
  if (!bandwidth) return null;
  return section("bus-bandwidth", "Collectives", bandwidth.words, bandwidth.rows.length ? sortable("Collectives", [
    ["Collective", (c) => h("code", {}, c[0]), (c) => c[0]],
    ["Size", (c) => c[1], (c) => c[2]],
    ["Ranks", (c) => count(c[3]), (c) => c[3]],
    [result.deviceTime[0]?.per === "window" ? "Number" : "Per step", (c) => String(Number(c[4].toPrecision(3))), (c) => c[4]],
    ["Mean", (c) => ns(c[5]), (c) => c[5]],
    ["Algorithm", (c) => gbps(c[6]), (c) => c[6]],
    ["Bus", (c) => gbps(c[7]), (c) => c[7]],
  ], bandwidth.rows, 4) : null);
}
function kernelsSection(model) {
  const { kernels, nKernelNames } = model.summary;
  if (!kernels.length) return null;
  return section("kernels", "Top kernels",
    `${count(kernels.length)} of ${many(nKernelNames, "kernel name")}. Shares are of the summed time of all kernels in the window; counts, means and maxima are exact.`,
    sortable("Top kernels", [
      ["Kernel", (k) => foldable(k[1], k[0]), (k) => k[1]],
      ["Count", (k) => count(k[2]), (k) => k[2]],
      ["Total", (k) => ns(k[3]), (k) => k[3]],
      ["Share", (k) => spark(k[6]), (k) => k[6]],
      ["Mean", (k) => ns(k[4]), (k) => k[4]],
      ["Max", (k) => ns(k[5]), (k) => k[5]],
    ], kernels, 2));
}
function opsSection(model) {
  const { ops, nOpNames } = model.summary, onDevice = model.summary.devices.length > 0;
  if (!ops.length) return null;
  return section("ops", "Top operators",
    `${count(ops.length)} of ${many(nOpNames, "operator name")}, host time in the window. Self: without the operators it calls${onDevice ? "; device: of the kernels it launched" : ""}.`,
    sortable("Top operators", [
      ["Operator", (op) => foldable(op[0].length > 90 ? `${op[0].slice(0, 88)}…` : op[0], op[0]), (op) => op[0]],
      ["Count", (op) => count(op[1]), (op) => op[1]],
      ["Self", (op) => ns(op[2]), (op) => op[2]],
      ["Total", (op) => ns(op[3]), (op) => op[3]],
      onDevice ? ["Device", (op) => ns(op[4]), (op) => op[4]] : ["Self per call", (op) => ns(op[2] / op[1]), (op) => op[2] / op[1]],
    ], ops, 2));
}

// -- several ranks of one job -------------------------------------------------------------------

const openRank = (rank) => { if (rank[9] >= 0) pick(`r${rank[9]}`); };

function ranksSection(job) {
  const { ranks } = job, longest = Math.max(1, ...ranks.map((rank) => rank[4]));
  const total = ranks.reduce((sum, rank) => sum + rank[4], 0) || 1;
  const used = RANK_PARTS.map(([kind, label, what], i) => ({ kind, label, what, i, part: ranks.reduce((sum, rank) => sum + rank[5][i], 0) / total })).filter((part) => part.part > 0);
  const row = (rank) => h("button", { type: "button", class: "rank", title: rank[1], on: { click: () => openRank(rank) } },
    h("span", {}, `rank ${rank[0]}`),
    h("span", { class: "stack", role: "img", "aria-label": used.map((part) => `${part.label} ${ns(rank[5][part.i])}`).join(", ") },
      used.map((part) => h("i", { class: part.kind, title: `${part.label}: ${ns(rank[5][part.i])}`, style: { width: `${rank[5][part.i] / longest * 100}%` } }))),
    h("span", {}, rank[3] ? "no verdict" : [ns(rank[4]), rank[6] > 0.02 * rank[4] ? [", ", h("b", {}, `others wait ${ns(rank[6])}`)] : ""]));
  return section("ranks", "Rank by rank",
    `${job.nSteady ? `The mean of ${many(job.nSteady, "common steady step")}` : "The window"} of each rank; full width ${ns(longest)}. A click opens the rank's own report${ranks.some((rank) => rank[9] < 0) ? ", of those that this page holds" : ""}.`,
    h("div", { class: `ranks ${ranks.length > 48 ? "many" : ""}` }, ranks.map(row)),
    h("ul", { class: "legend" }, used.map((part) => h("li", { title: part.what }, h("i", { class: part.kind }), part.label, " ", h("b", {}, share(part.part))))),
    h("details", { class: "more" }, h("summary", {}, "The same as a table"),
      sortable("Ranks", [
        ["Rank", (rank) => rank[0], (rank) => rank[0]],
        ["Step", (rank) => ns(rank[4]), (rank) => rank[4]],
        ...used.map((part) => [part.label, (rank) => ns(rank[5][part.i]), (rank) => rank[5][part.i]]),
        ["Makes others wait", (rank) => ns(rank[6]), (rank) => rank[6]],
        ["Clock moved by", (rank) => rank[7] ? ns(rank[7]) : "–", (rank) => rank[7]],
        ["Findings", (rank) => count(rank[8]), (rank) => rank[8]],
        ["Host", (rank) => rank[2] || "–", (rank) => rank[2]],
      ], ranks, 0)));
}

function lateSection(job) {
  const steps = job.steps;
  if (steps.length < 2) return null;
  const top = Math.max(...steps.map((step) => step[2])) || 1;
  const text = ([number, steady, wall, wait, late, lateWait]) =>
    `step ${number}: ${ns(wall)}, ranks wait ${ns(wait)} in the mean${late === null ? "" : `, rank ${late} makes the others wait ${ns(lateWait)}`}${steady ? "" : ", not counted as steady"}`;
  const caption = h("p", { class: "say" }, text(steps.reduce((a, b) => (b[3] > a[3] ? b : a))));
  return section("imbalance", "Who was last, step by step",
    `Height: the step's wall time, mean over ranks, full height ${ns(top)}. Yellow: waiting for the last rank. Pale: not steady.`,
    h("div", { class: `steps ${steps.length > 60 ? "many" : ""}` }, steps.map((step) =>
      h("div", { class: step[1] ? "" : "odd", title: text(step), style: { height: `${step[2] / top * 100}%` }, on: { mouseenter: () => { caption.textContent = text(step); } } },
        h("i", { class: "await", style: { height: `${step[2] ? step[3] / step[2] * 100 : 0}%` } }),
        h("i", { class: "op", style: { height: `${step[2] ? 100 - step[3] / step[2] * 100 : 100}%` } })))),
    steps.length > 24 ? null : h("div", { class: "under", "aria-hidden": "true" },
      steps.map((step) => h("span", {}, `#${step[0]} `, step[4] === null ? "" : h("b", {}, `rank ${step[4]}`)))),
    caption);
}

function collectivesSection(job) {
  const rows = job.collectives;
  if (!rows.length) return null;
  return section("collectives", "Collectives",
    `${many(job.nMatches, "match", "matches")} between ranks. Transfer: from the last rank's start to the end; wait: from a rank's own start to the last one's, on average, also during computation.${rows.some((c) => c[12] !== null) ? " Bus: bytes on the bus over the transfer, as NCCL's tests count them." : ""}`,
    sortable("Collectives", [
      ["Collective", (c) => h("code", {}, c[1]), (c) => c[1]],
      ["Group", (c) => `${c[0] || "–"}, ${many(c[3], "rank")}`, (c) => c[0]],
      ["Size", (c) => c[10] === null ? c[2] === null ? "" : many(c[2], "element") : `${bytes(c[10])}${c[2] === null ? " on average" : ""}`, (c) => c[10] ?? c[2] ?? -1],
      ["Per step", (c) => String(Number(c[4].toPrecision(3))), (c) => c[4]],
      ["Transfer", (c) => ns(c[5]), (c) => c[5]],
      ["Wait", (c) => ns(c[6]), (c) => c[6]],
      ["Longest", (c) => ns(c[7]), (c) => c[7]],
      rows.some((c) => c[12] !== null) ? ["Bus", (c) => `${c[13] ? "at least " : ""}${gbps(c[12])}`, (c) => c[12] || 0] : null,
      ["Last", (c) => `rank ${c[8]} in ${share(c[9])}`, (c) => c[9]],
    ].filter(Boolean), rows, 5));
}

function pipelinesSection(job) {
  if (!job.pipelines.length) return null;
  return section("pipelines", "Pipelines",
    "Waiting: until a stage that a rank needs is done. Transfer: from then on, with nothing else running.",
    job.pipelines.flatMap(([headline, basis, ranks]) => [
      h("p", {}, glued(headline)), h("p", { class: "how" }, basis),
      sortable("Ranks of a pipeline", [
        ["Rank", (r) => String(r[0]), (r) => r[0]],
        ["Stages", (r) => r[1].join(", "), (r) => r[1][0]],
        ["A micro-batch", (r) => ns(r[2]), (r) => r[2]],
        ["Passes", (r) => ns(r[3]), (r) => r[3]],
        ["Waiting", (r) => ns(r[4]), (r) => r[4]],
        ["Transfer", (r) => ns(r[5]), (r) => r[5]],
      ], ranks, 0),
    ]));
}

function groupsSection(result) {
  const { rows, words } = result.groups;
  if (!rows.length) return null;
  const split = rows.some((g) => g[7] + g[8] > 0);
  return section("groups", "Process groups", words,
    sortable("Process groups", [
      ["Group", (g) => g[0], (g) => g[0]],
      ["Messages", (g) => String(Number(g[3].toPrecision(3))), (g) => g[3]],
      ["Sizes", (g) => g[1], (g) => g[4] || 0],
      ["Overlapped", (g) => ns(g[5]), (g) => g[5]],
      ["Exposed", (g) => ns(g[6]), (g) => g[6]],
      split ? ["Waiting", (g) => ns(g[7]), (g) => g[7]] : null,
      split ? ["Transfer", (g) => ns(g[8]), (g) => g[8]] : null,
      split ? ["Bus", (g) => g[2], (g) => g[10] || 0] : null,
      ["Told by", (g) => g[9], (g) => g[9]],
    ].filter(Boolean), rows, 4));
}

function jobHeadline(result) {
  const job = result.job, n = result.nFindings;
  const state = result.refused ? "No verdict" : n ? many(n, "finding") : result.healthy ? "Nothing found" : "Nothing found, not everything analysed";
  const limited = result.notChecked.length + result.crashes.length;
  return h("div", { class: "head" },
    h("p", { class: "kicker" }, h("b", { class: !n && result.healthy ? "good" : "" }, state), ` · ${many(job.nRanks, "rank")}${job.worldSize && job.worldSize !== job.nRanks ? ` of ${count(job.worldSize)}` : ""}`),
    h("h1", {}, glued(result.verdict[0])), result.verdict.slice(1).map((line) => h("p", { class: "lede" }, glued(line))),
    h("dl", { class: "facts" }, [
      ["One job because", job.basis],
      ["Step", job.stepMs === null ? "–" : !job.nSteady ? `none marked, so shares are of the window, ${ms(job.stepMs)}` : `${ms(job.stepMs)}, mean of ${many(job.nSteady, "steady step")} on every rank`],
      ["Collectives", `${many(job.nMatches, "match", "matches")} between ranks`],
      ["Checked on every rank", `${many(result.checked.length, "pattern")}${limited ? `, ${count(limited)} not` : ""}`],
    ].map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value)))));
}

// -- what was not judged, and what was read -----------------------------------------------------

function replaySection(result) {
  const replay = result.replay;
  if (!replay) return null;
  return section("replay", "What bounds a step, and what if", replay.path,
    replay.whatIfs.length ? pairs(replay.whatIfs.map(([question, text]) => [h("code", {}, question), glued(text)])) : null,
    h("p", { class: "how" }, replay.model));
}
function suspicionSection(result) {
  if (!result.suspicions || !result.suspicions.length) return null;
  const [title, opinion] = result.suspicious;
  return section("suspicious", title, `This is ${opinion}.`,
    h("ul", { class: "notes" }, result.suspicions.map((one) => h("li", {}, h("p", {}, glued(one))))));
}
function uncheckedSection(result) {
  if (!result.notChecked.length && !result.crashes.length) return null;
  const groups = new Map();
  for (const item of result.notChecked) {
    const how = item.device ? result.withoutDevice : item.how;
    groups.set(how, [...(groups.get(how) || []), item]);
  }
  return section("unchecked", "Not checked",
    `There is no verdict on these, neither good nor bad.${result.checked.length ? ` ${many(result.checked.length, "pattern")} ${result.checked.length === 1 ? "was" : "were"} checked.` : ""}`,
    [...groups].map(([how, items]) => h("div", {},
      h("h3", {}, !items[0].missing.length ? "Left out by --only, --skip or pyproject.toml" : `No ${items[0].device ? "GPU rows" : [...new Set(items.flatMap((item) => item.missing))].join(", ")}`),
      h("p", {}, items.map((item, i) => [i ? ", " : "", h("span", { class: "mono" }, item.code), ` ${item.name}`])),
      how ? h("p", { class: "how" }, items[0].device ? `${how}.` : ["To check: ", h("code", {}, how)]) : null)),
    result.crashes.length ? [h("h3", {}, "Failed while checking"), h("p", { class: "sub" }, "A bug in torchtriage, not a fault of the recording; the other patterns still ran."),
      h("ul", { class: "notes" }, result.crashes.map((crash) => h("li", { class: "warn" }, h("p", {}, h("span", { class: "mono" }, crash.code), " ", crash.error))))] : null);
}
function notesSection(result) {
  if (!result.notes.length) return null;
  const rank = { refuse: 0, warn: 1, info: 2 }, words = { refuse: "no verdict", warn: "limits the numbers", info: "to know" };
  const notes = [...result.notes].sort((a, b) => rank[a.level] - rank[b.level]);
  return section("recording", "The recording", "What it can and cannot answer.",
    h("ul", { class: "notes" }, notes.map((note) => h("li", { class: note.level },
      h("p", {}, glued(note.message)), note.fix ? h("p", { class: "how" }, note.fix) : null,
      h("p", { class: "tag" }, h("span", { class: "mono" }, note.code), ` · ${words[note.level]}`,
        note.evidence.map(([key, value]) => ` · ${evidenceName(key)} ${evidenceText(key, value)}`))))));
}
function readSection(result) {
  const t = result.trace;
  return section("read", "What was read", null,
    h("div", { class: "two" },
      h("div", {}, pairs([["File", t.file], ["Size", bytes(t.sizeBytes)], ["Events", count(t.nEvents)], ["Complete events read", count(t.nRows)],
        ["Read as", { strict: "valid JSON", repaired: "JSON after repairs", salvaged: "what a broken file still held" }[t.tier]],
        ["Lost", many(t.nLost, "event")], ["Repaired", many(t.nRepaired, "value")], ["Clock resolution", ns(t.resolutionNs)]]),
        t.loss.map((line) => h("p", { class: "how" }, line))),
      h("div", {}, h("h3", {}, "Events by category"), pairs(t.categories.map(([name, n]) => [h("code", {}, name), count(n)])))));
}

// -- the page -----------------------------------------------------------------------------------

function defined(rows) {
  return h("dl", { class: "facts" }, rows.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
}

function headline(result) {
  const t = result.trace, s = result.summary, n = result.nFindings;
  const limited = result.notChecked.length + result.crashes.length;
  const state = result.refused ? h("b", {}, "No verdict") : n ? h("b", {}, many(n, "finding"))
    : !result.healthy ? h("b", {}, "Nothing found, not everything analysed")
    : limited ? h("span", {}, `Nothing found by ${count(result.checked.length)} of ${many(result.checked.length + limited, "pattern")}`)
    : h("b", { class: "good" }, "Nothing found");
  const rank = t.rank === null || t.worldSize === 1 ? "" : ` · rank ${t.rank}${t.worldSize === null ? "" : ` of ${t.worldSize}`}`;
  const facts = [
    ["Device", t.devices.length ? [...new Set(t.devices)].map((name) => { const k = t.devices.filter((each) => each === name).length; return !name ? `${k} without a name` : k > 1 ? `${k} × ${name}` : name; }).join(", ") : t.vendor === "cpu" && !result.refused ? "CPU only" : "none recorded"],
    [result.run.some(([label]) => label === "step") ? "Step as recorded" : "Step", s && s.stepMs !== null ? s.nSteps === 1 ? `${ms(s.stepMs)}, one step` : `${ms(s.stepMs)}, mean of ${s.nSteady} steady of ${count(s.nSteps)}` : result.refused ? "not judged" : "none marked, so shares are of the window"],
    ["Recorded with", t.flags.length ? t.flags.join(", ") : "no extra flags"],
    ["Read", `${count(t.nEvents)} events, ${bytes(t.sizeBytes)}`],
  ];
  // what torchtriage run did stands first; its step is the one without the profiler
  facts.unshift(...result.run.map(([label, text]) => [label === "step" ? "Timed" : label[0].toUpperCase() + label.slice(1), text]));
  if (t.nLost || t.nRepaired) facts.push(["Lost", `${many(t.nLost, "event")} lost, ${many(t.nRepaired, "value")} repaired`]);
  return h("div", { class: "head" },
    h("p", { class: "kicker" }, state, ` · ${t.file}${rank}`),
    h("h1", {}, glued(result.verdict[0])), result.verdict.slice(1).map((line) => h("p", { class: "lede" }, glued(line))),
    !result.refused && !n ? h("div", { class: limited ? "unsure" : "clean" },
      h("p", {}, limited ? `No checked pattern found anything. ${many(limited, "pattern")} ${limited === 1 ? "was" : "were"} not checked${result.crashes.length ? ` (${result.crashes.length} of them failed)` : ""}.`
        : "Every pattern could be checked on this recording, and none found anything."),
      result.checked.length ? h("p", {}, `${many(result.checked.length, "pattern")} checked: `, h("span", { class: "mono" }, result.checked.join(", "))) : null,
      limited ? h("p", {}, "Not checked: ", h("span", { class: "mono" }, [...result.notChecked, ...result.crashes].map((item) => item.code).join(", ")), ". ", h("a", { href: "#unchecked" }, "Why, and how they can be")) : null) : null,
    defined(facts),
    result.compiled.length ? h("details", {}, h("summary", {}, "What torch.compile did"), defined(result.compiled)) : null);
}

let model = null;
function show(result) {
  const summary = result.summary;
  result.findings.forEach((finding, i) => {
    finding.list = marksOf(finding);
    finding.id = `f${i + 1}-${finding.code.replace(/[^\w-]/g, "")}`;
  });
  model = { result, findings: result.findings, summary, steps: summary ? summary.steps : [], wall: summary ? Math.max(1, summary.wallNs) : 0,
    lanes: summary ? summary.lanes.map(unpack) : [], time: { view() {}, show() {}, select() {}, draw() {} } };
  const drawn = model.lanes.length > 0 && model.wall > 1;
  if (drawn) model.time = timeline(model);
  const notes = notesSection(result), findings = findingsSection(result, model);
  if (result.job) {
    const { job } = result;
    const parts = [jobHeadline(result), result.refused ? notes : ranksSection(job), findings, lateSection(job), collectivesSection(job), groupsSection(result), pipelinesSection(job), result.refused ? null : notes, uncheckedSection(result)];
    document.getElementById("main").replaceChildren(...parts.filter(Boolean));
    return;
  }
  const parts = [headline(result)];
  // one or two bars give the verdict its picture; a bar for each of eight devices would hide the findings
  const account = summary && accountSection(model), brief = !result.refused && account && summary.devices.length <= 2;
  if (result.refused) parts.push(notes, uncheckedSection(result), findings);
  else parts.push(brief ? account : null, findings, whereSection(result));
  if (summary) parts.push(brief ? null : account, drawn ? model.time.node : null, stepsSection(model), idleSection(result, model), servingSection(result), deviceTimeSection(result), bandwidthSection(result), groupsSection(result), kernelsSection(model), opsSection(model));
  parts.push(suspicionSection(result), replaySection(result));
  if (!result.refused) parts.push(notes, uncheckedSection(result));
  parts.push(readSection(result));
  document.getElementById("main").replaceChildren(...parts.filter(Boolean));
  redraw();
  const target = result.findings.find((finding) => `#${finding.id}` === location.hash);
  if (target) openCard(target);
}
function redraw() {
  palette = null;
  if (!model) return;
  model.time.draw();
  for (const finding of model.findings) if (finding.draw && finding.card.open) finding.draw();
}

const root = document.documentElement, theme = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
function settle() {
  theme.textContent = dark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  theme.setAttribute("aria-pressed", String(dark()));
  redraw();
}
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; settle(); });
system.addEventListener("change", settle);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });

// paper is light, and shows every finding
let before = null;
addEventListener("beforeprint", () => {
  before = { theme: root.dataset.theme, open: model.findings.filter((finding) => finding.card.open) };
  root.dataset.theme = "light";
  for (const finding of model.findings) finding.card.open = true;
  redraw();
});
addEventListener("afterprint", () => {
  if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
  for (const finding of model.findings) finding.card.open = before.open.includes(finding);
  redraw();
});

// inside a notebook's frame a bare "#place" would lead to the notebook, so move there ourselves
document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest("a[href^='#']");
  const target = link && document.getElementById(link.getAttribute("href").slice(1));
  if (!target || event.defaultPrevented) return;
  event.preventDefault();
  target.scrollIntoView();
  target.setAttribute("tabindex", "-1");
  target.focus({ preventScroll: true });
});

document.getElementById("bar").hidden = false;
const which = document.getElementById("which"), foot = document.getElementById("foot");
DATA.jobs.forEach((result, i) => {
  which.append(h("option", { value: `j${i}` }, `${many(result.job.nRanks, "rank")} of one job${result.refused ? " · no verdict" : ` · ${many(result.nFindings, "finding")}`}`));
});
DATA.results.forEach((result, i) => {
  const rank = result.trace.rank === null ? "" : `rank ${result.trace.rank} · `;
  which.append(h("option", { value: `r${i}` }, `${rank}${result.trace.file}${result.refused ? " · no verdict" : ` · ${many(result.nFindings, "finding")}`}`));
});
document.getElementById("picker").hidden = DATA.results.length + DATA.jobs.length < 2;
function pick(value) {
  which.value = value;
  show((value[0] === "j" ? DATA.jobs : DATA.results)[Number(value.slice(1))]);
  scrollTo(0, 0);
  say("Trace changed");
}
which.addEventListener("change", () => pick(which.value));
foot.hidden = false;
foot.append(h("p", {}, "Made by torchtriage. This page holds everything it shows and contacts no server. Times and names are those of the recording."),
  DATA.cut.length ? h("p", {}, `To stay small, it contains ${DATA.cut.join("; ")}. The JSON report has all of it.`) : "");
settle();
show(DATA.jobs[0] || DATA.results[0]);
})();
