"use strict";
// Draws what the service sends. Names only ever become text nodes or attributes of our own
// elements; there is no innerHTML here. Times are seconds since the service's page began.
(() => {
const DATA = JSON.parse(document.getElementById("data").textContent);
const SHORTEST_S = 60; // a young page shows a minute
const ALARM_S = 60; // how long an alarm is the headline: none is ever called off
const IDLE_S = 20;
const N_ROLLOUTS = 2; // the newest
const SOURCES = { alarm: "alarm", ladder: "ladder", rollout: "rollout" };
const NB = "\u00a0";
const glued = (text) => text.replace(/(\d) (?=%|[mµ]?s\b)/g, `$1${NB}`); // a number stays with its unit
const find = (id) => document.getElementById(id);

const seen = { at: 0, wall: 0, models: new Map(), memory: [], events: [], ladders: [], rollouts: [], inFlight: [], notShown: 0, refused: 0, listeners: 0 };
let linked = "wait", paused = false, got = false;

// -- elements -----------------------------------------------------------------------------------

function put(node, props, kids) {
  for (const [key, value] of Object.entries(props || {})) {
    if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...kids.flat(3).filter((kid) => kid !== null && kid !== undefined && kid !== false && kid !== ""));
  return node;
}
const h = (tag, props, ...kids) => put(document.createElement(tag), props, kids);
const s = (tag, props, ...kids) => put(document.createElementNS("http://www.w3.org/2000/svg", tag), props, kids);
function write(node, text) { if (node.textContent !== text) node.textContent = text; }

// -- numbers as people read them ----------------------------------------------------------------

const digits = (x) => (Math.abs(x) >= 99.95 ? x.toFixed(0) : Math.abs(x) >= 9.995 ? x.toFixed(1) : x.toFixed(2));
function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.9995e-3) return `${digits(value * 1e6)}${NB}µs`;
  return value < 0.9995 ? `${digits(value * 1e3)}${NB}ms` : `${digits(value)}${NB}s`;
}
const tick = (value) => (value < 1e-3 ? `${+(value * 1e6).toPrecision(2)} µs` : value < 1 ? `${+(value * 1e3).toPrecision(2)} ms` : `${+value.toPrecision(2)} s`);
function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${unit === "B" ? value : digits(value)}${NB}${unit}`;
    value /= 1024;
  }
  return "";
}
const rate = (value) => (value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1));
const percent = (share) => `${+(share * 100).toPrecision(3)}${NB}%`;
const clock = (at) => new Date((seen.wall + at) * 1000).toLocaleTimeString("en-GB");
const ago = (s_) => (s_ < 60 ? `${Math.round(s_)}${NB}s` : `${Math.round(s_ / 60)}${NB}min`);
const failures = (point) => Object.values(point.errors).reduce((sum, n) => sum + n, 0);
const nameOf = (model) => `${model.model} ${model.version}`.trim();
const sum = (list) => list.reduce((total, value) => total + value, 0);

// -- the clock that all charts share ------------------------------------------------------------

const LEFT = 52, RIGHT = 10;
let wide = 600;
function axis() {
  const first = Math.min(seen.at, ...[...seen.models.values()].map((model) => model.points[0].at_s), ...(seen.memory[0] ? [seen.memory[0].at_s] : []));
  const span = Math.min(DATA.keptS, Math.max(SHORTEST_S, seen.at - first));
  return { from: seen.at - span, to: seen.at, span, x: (at) => LEFT + ((at - seen.at + span) / span) * (wide - LEFT - RIGHT) };
}
function grid(time, high, labelled) {
  const step = time.span > 150 ? 60 : time.span > 80 ? 30 : 15;
  const parts = [];
  for (let at = Math.ceil((seen.wall + time.from) / step) * step - seen.wall; at <= time.to; at += step) {
    const x = time.x(at);
    parts.push(s("path", { class: "grid", d: `M${x.toFixed(1)} 0V${high}` }));
    if (labelled && x < wide - 30) parts.push(s("text", { x: x.toFixed(1), y: high + 13, "text-anchor": "middle" }, clock(at).slice(0, step < 60 ? 8 : 5)));
  }
  return parts;
}
function signs(time, high) {
  return seen.events.filter((one) => one.at_s >= time.from && (one.source === "alarm" || one.tone !== "plain")).map((one) => {
    const x = time.x(one.at_s).toFixed(1);
    return [s("path", { class: `sign ${one.source}`, d: `M${x} 0V${high}` }), s("path", { class: `flag ${one.source}`, d: `M${x} 0l7 4-7 4z` })];
  });
}
function runs(points) {
  // where seconds are missing nothing is drawn
  const out = [];
  let last = null;
  for (const point of points) {
    if (last === null || point.at_s - point.span_s - last.at_s > 2.5) out.push([]);
    out[out.length - 1].push(point);
    last = point;
  }
  return out;
}
const path = (pairs) => pairs.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function figure(key, title, note) {
  const now = h("div", { class: "now" }), picture = s("svg", { role: "img", tabindex: "0" });
  const node = h("figure", { "data-key": key }, h("figcaption", {}, h("h2", {}, title, note && " ", note && h("small", {}, note)), now), picture);
  const one = { key, node, now, picture, points: [], words: () => "", at: null };
  const show = (x) => {
    const { left, width } = picture.getBoundingClientRect();
    const time = axis(), at = time.from + (((x - left) / width) * wide - LEFT) / (wide - LEFT - RIGHT) * time.span;
    one.at = one.points.length ? one.points.reduce((best, point) => (Math.abs(point.at_s - at) < Math.abs(best.at_s - at) ? point : best)).at_s : null;
    hover(one);
  };
  picture.addEventListener("pointermove", (event) => show(event.clientX));
  picture.addEventListener("pointerleave", () => { one.at = null; hover(one); });
  picture.addEventListener("blur", () => { one.at = null; hover(one); });
  picture.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { one.at = null; hover(one); return; }
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !one.points.length) return;
    event.preventDefault();
    const from = one.at === null ? one.points.length - (by < 0 ? 0 : 1) : one.points.findIndex((point) => point.at_s >= one.at);
    one.at = one.points[Math.min(Math.max(from + by, 0), one.points.length - 1)].at_s;
    hover(one);
  });
  return one;
}
const tip = h("div", { class: "tip", hidden: true });
document.body.append(tip);
function hover(one) {
  for (const old of document.querySelectorAll(".cross")) old.remove();
  const point = one.at === null ? null : one.points.find((each) => each.at_s === one.at);
  tip.hidden = !point;
  if (!point) return;
  const x = axis().x(point.at_s), box = one.picture.getBoundingClientRect();
  one.picture.append(s("path", { class: "cross", d: `M${x.toFixed(1)} 0V${box.height}` }));
  write(tip, `${clock(point.at_s)}\n${one.words(point)}`);
  const left = box.left + (x / wide) * box.width;
  tip.style.left = `${Math.min(left + 10, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.max(box.top + 8, 4)}px`;
}

// -- charts -------------------------------------------------------------------------------------

const figures = new Map();
function figureFor(key, title, note) {
  if (!figures.has(key)) figures.set(key, figure(key, title, note));
  return figures.get(key);
}
function drawn(one, high, parts, label) {
  one.picture.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  one.picture.style.height = `${high + 2}px`; // with its border
  one.picture.setAttribute("aria-label", label);
  one.picture.replaceChildren(...parts.flat(4).filter(Boolean));
  if (one.at !== null) hover(one);
  return one;
}
function modelChart(model, time) {
  const one = figureFor(`m ${model.model}\n${model.version}`, model.model, model.version);
  const points = model.points.filter((point) => point.at_s >= time.from);
  // a version that nobody asks any more makes room
  const idle = seen.models.size > 1 && seen.at - points[points.length - 1].at_s > IDLE_S;
  const tall = idle ? 60 : 150, low = idle ? 22 : 46, gap = 8, high = tall + gap + low;
  const timed = points.filter((point) => point.p50_s !== null);
  const parts = [grid(time, high, true)];
  if (timed.length) {
    let [least, most] = [Math.min(...timed.map((point) => point.p50_s)) / 1.3, Math.max(...timed.map((point) => point.p99_s)) * 1.2];
    if (most / least < 4) { const middle = Math.sqrt(least * most); [least, most] = [middle / 2, middle * 2]; }
    const y = (value) => tall - (Math.log(value / least) / Math.log(most / least)) * (tall - 6);
    const ticks = [];
    for (let power = Math.floor(Math.log10(least)); power <= Math.ceil(Math.log10(most)); power++) {
      for (const step of most / least > 60 ? [1] : most / least > 12 ? [1, 3] : [1, 2, 5]) {
        const value = step * 10 ** power;
        if (value >= least && value <= most && !(idle && ticks.length > 1) && y(value) > 9 && y(value) < tall - 3) ticks.push(value);
      }
    }
    parts.push(ticks.map((value) => [s("path", { class: "grid", d: `M${LEFT} ${y(value).toFixed(1)}H${wide - RIGHT}` }), s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, tick(value))]));
    for (const run of runs(timed)) {
      const line = (name) => run.map((point) => [time.x(point.at_s), y(point[name])]);
      const band = (upper, lower) => `${path([...line(upper), ...line(lower).reverse()])}Z`;
      if (run.length > 1) parts.push(s("path", { class: "far", d: band("p99_s", "p90_s") }), s("path", { class: "near", d: band("p90_s", "p50_s") }));
      parts.push(s("path", { class: "p99", d: path(line("p99_s")) }), s("path", { class: "p50", d: run.length > 1 ? path(line("p50_s")) : `${path(line("p50_s"))}h2` }));
    }
  }
  const most = Math.max(1, ...points.map((point) => point.n / point.span_s));
  const bar = (point, n, from) => {
    const right = time.x(point.at_s), width = Math.max(right - time.x(point.at_s - point.span_s) - 0.6, 0.8);
    const up = (n / point.span_s / most) * (low - 4), foot = (from / point.span_s / most) * (low - 4);
    return n ? `M${(right - width).toFixed(1)} ${(high - foot).toFixed(1)}h${width.toFixed(1)}v${(-up).toFixed(1)}h${(-width).toFixed(1)}z` : "";
  };
  const bad = (point) => failures(point) + point.nan;
  parts.push(s("path", { class: "count", d: points.map((point) => bar(point, Math.max(point.n - bad(point), 0), bad(point))).join("") }));
  parts.push(s("path", { class: "failed", d: points.map((point) => bar(point, Math.min(bad(point), point.n), 0)).join("") }));
  parts.push(s("path", { class: "grid", d: `M0 ${tall + gap / 2}H${wide}` }), s("text", { x: LEFT - 6, y: tall + gap + 9, "text-anchor": "end" }, `${rate(most)}/s`), signs(time, high));
  one.points = points;
  one.words = (point) => [
    `half within ${seconds(point.p50_s)}, 90 % ${seconds(point.p90_s)}, 99 % ${seconds(point.p99_s)}`,
    `${rate(point.n / point.span_s)} requests/s`,
    ...Object.entries(point.errors).map(([kind, n]) => `${n} × ${kind}`), point.nan ? `${point.nan} × NaN` : "",
  ].filter(Boolean).join("\n");
  const last = lately([model], 10);
  const open = sum(seen.inFlight.filter((each) => each[0] === model.model && each[1] === model.version).map((each) => each[2]));
  one.now.replaceChildren(
    ...[["p50", seconds(last.p50)], ["p90", seconds(last.p90)], ["p99", seconds(last.p99)]].map(([label, text]) => h("span", {}, `${label} `, h("b", {}, text))),
    h("span", {}, h("b", {}, rate(last.rate)), "/s"),
    h("span", { class: last.bad ? "bad" : "" }, h("b", {}, last.bad ? percent(last.bad / last.n) : "none"), " failed"),
    h("span", {}, h("b", {}, String(open)), " in flight"));
  return drawn(one, high + 18, parts, `${nameOf(model)}: ${one.now.textContent}`);
}
function ladderChart(ladder, time) {
  const one = figureFor(`l ${ladder.name}`, ladder.name, "ladder");
  const rung = 19, high = ladder.modes.length * rung + 8, y = (level) => level * rung + 13;
  const parts = [grid(time, high, false), ladder.modes.map((mode, level) => [
    s("path", { class: "grid", d: `M${LEFT} ${y(level)}H${wide - RIGHT}` }),
    s("text", { x: LEFT - 6, y: y(level) + 4, "text-anchor": "end" }, mode.name.length > 7 ? `${mode.name.slice(0, 6)}…` : mode.name),
  ])];
  ladder.changes.forEach(([at, level], i) => {
    const from = Math.max(at, time.from), to = i + 1 < ladder.changes.length ? ladder.changes[i + 1][0] : time.to;
    if (to < time.from) return;
    parts.push(s("path", { class: level ? "rung below" : "rung", d: `M${time.x(from).toFixed(1)} ${y(level)}H${time.x(to).toFixed(1)}` }));
    if (i && at >= time.from) parts.push(s("path", { class: "rise", d: `M${time.x(at).toFixed(1)} ${y(ladder.changes[i - 1][1])}V${y(level)}` }));
  });
  one.now.replaceChildren(h("span", { class: ladder.level ? "bad" : "" }, "mode ", h("b", {}, ladder.mode)));
  return drawn(one, high, [parts, signs(time, high)], `${ladder.name} in mode ${ladder.mode}`);
}
function rolloutChart(rollout, time) {
  const one = figureFor(`r ${rollout.name}`, rollout.name, "rollout");
  const high = 56, y = (share) => high - 6 - share * (high - 14);
  const pairs = [];
  rollout.changes.forEach(([at, share], i) => {
    const to = i + 1 < rollout.changes.length ? rollout.changes[i + 1][0] : time.to;
    if (to >= time.from) pairs.push([time.x(Math.max(at, time.from)), y(share)], [time.x(to), y(share)]);
  });
  const parts = [grid(time, high, false), [0, 1].map((share) => [
    s("path", { class: "grid", d: `M${LEFT} ${y(share)}H${wide - RIGHT}` }),
    s("text", { x: LEFT - 6, y: y(share) + 4, "text-anchor": "end" }, percent(share)),
  ])];
  if (pairs.length) parts.push(s("path", { class: "given", d: `${path([[pairs[0][0], y(0)], ...pairs, [pairs[pairs.length - 1][0], y(0)]])}Z` }), s("path", { class: "edge", d: path(pairs) }));
  one.now.replaceChildren(h("span", { class: rollout.status === "rolled back" ? "bad" : "" }, h("b", {}, percent(rollout.share)), ` to ${rollout.candidate}`));
  return drawn(one, high, [parts, signs(time, high)], `${percent(rollout.share)} of requests go to ${rollout.candidate}`);
}
function memoryChart(time) {
  const one = figureFor("memory", "Memory", "of the process"), points = seen.memory.filter((point) => point.at_s >= time.from);
  const high = 56, of = (point) => point.rss_bytes;
  const least = Math.min(...points.map(of)), most = Math.max(...points.map(of));
  const span = Math.max(most - least, most * 0.05, 1), foot = Math.max((least + most - span) / 2, 0);
  const y = (value) => high - 7 - ((value - foot) / span) * (high - 16);
  const parts = [grid(time, high, true), [least, most].slice(most - least > span / 3 ? 0 : 1).map((value) => s("text", { x: LEFT - 4, y: y(value) + 4, "text-anchor": "end" }, bytes(value).replace(/\.\d+/, "").replace(`${NB}MiB`, " MB").replace(`${NB}GiB`, " GB")))];
  for (const run of runs(points)) parts.push(s("path", { class: "bytes", d: run.length > 1 ? path(run.map((point) => [time.x(point.at_s), y(of(point))])) : "" }));
  one.points = points;
  one.words = (point) => [bytes(of(point)), ...point.devices.map(([name, size]) => `device ${name}: ${bytes(size)}`)].join("\n");
  const last = points[points.length - 1];
  one.now.replaceChildren(h("span", {}, h("b", {}, bytes(of(last)))), ...last.devices.map(([name, size]) => h("span", {}, `device ${name} `, h("b", {}, bytes(size)))));
  return drawn(one, high + 18, [parts, signs(time, high)], `Memory: ${one.now.textContent}`);
}
function lately(models, span) {
  const points = models.flatMap((model) => model.points.filter((point) => point.at_s > seen.at - span));
  const longest = Math.max(1, ...models.map((model) => sum(model.points.filter((point) => point.at_s > seen.at - span).map((point) => point.span_s))));
  const n = sum(points.map((point) => point.n)), timed = points.filter((point) => point.p50_s !== null);
  const weight = sum(timed.map((point) => point.n)) || 1;
  const mean = (name) => (timed.length ? sum(timed.map((point) => point[name] * point.n)) / weight : null);
  return { n, rate: n / longest, bad: sum(points.map((point) => failures(point) + point.nan)), nan: sum(points.map((point) => point.nan)), p50: mean("p50_s"), p90: mean("p90_s"), p99: mean("p99_s") };
}
function charts() {
  const board = find("charts");
  wide = Math.max(board.clientWidth - 2, 240);
  if (!seen.models.size && !seen.memory.length) return;
  const time = axis();
  const list = [...seen.models.values()].map((model) => modelChart(model, time));
  list.push(...seen.ladders.map((ladder) => ladderChart(ladder, time)), ...seen.rollouts.slice(-N_ROLLOUTS).map((rollout) => rolloutChart(rollout, time)));
  if (seen.memory.length) list.push(memoryChart(time));
  for (const [key, one] of figures) if (!list.includes(one)) { one.node.remove(); figures.delete(key); }
  const nodes = list.map((one) => one.node);
  if (seen.models.size) nodes.splice(seen.models.size, 0, legend);
  if (nodes.length !== board.children.length || nodes.some((node, i) => board.children[i] !== node)) board.replaceChildren(...nodes);
}
const legend = h("p", { class: "keys" }, [["mid", "p50"], ["near", "p50 to p90"], ["far", "p90 to p99"], ["count", "requests/s"], ["failed", "failed or NaN"], ["line", "alarm"], ["line moved", "ladder or rollout moved"]].map(([kind, text]) => h("span", {}, h("i", { class: kind }), text)));

// -- words --------------------------------------------------------------------------------------

function headline() {
  const models = [...seen.models.values()], last = lately(models, 10);
  const alarm = seen.events.filter((one) => one.source === "alarm" && seen.at - one.at_s < ALARM_S).pop();
  const back = seen.events.filter((one) => one.word === "rolled back" && seen.at - one.at_s < ALARM_S).pop();
  const down = seen.ladders.find((ladder) => ladder.level > 0);
  const newest = alarm && back ? (alarm.at_s > back.at_s ? alarm : back) : alarm || back;
  let mark = ["good", "all is well"], text = models.length ? "All is well" : "Waiting for the first request";
  if (newest) {
    mark = ["", `${SOURCES[newest.source]}, ${ago(seen.at - newest.at_s)} ago`];
    text = newest === alarm ? `${newest.subject}: ${newest.text}` : `Rolled back: ${newest.text}`;
  } else if (down) {
    mark = ["", down.dry_run ? "dry run" : "degraded"];
    text = `${down.name} ${down.dry_run ? "would be" : "is"} in mode ${down.mode}`;
  } else if (models.length && !last.n) {
    mark = ["", "quiet"];
    text = "No requests in the last 10 s";
  }
  find("kicker").replaceChildren("live · ", h("b", { class: mark[0] }, mark[1]), ` · ${clock(seen.at)}`);
  write(find("verdict"), glued(text));
  document.title = `${newest || down ? "! " : ""}${text} · torchtriage`;
  const memory = seen.memory[seen.memory.length - 1];
  const rows = [
    ["requests/s", rate(last.rate)], ["half within", seconds(last.p50)], ["99 % within", seconds(last.p99)],
    ["failed", last.bad ? percent(last.bad / last.n) : "none", last.bad > 0],
    ["in flight", String(sum(seen.inFlight.map((each) => each[2])))], ["memory", memory ? bytes(memory.rss_bytes) : "–"],
  ];
  find("facts").replaceChildren(...rows.map(([label, value, bad]) => h("div", { class: bad ? "bad" : "" }, h("dt", {}, label), h("dd", {}, value))));
  write(find("foot"), [`${seen.listeners} listening`, seen.refused ? `${seen.refused} refused` : "", seen.notShown ? `${seen.notShown} requests of other models are not drawn` : ""].filter(Boolean).join(", ") + ".");
}
function moves() {
  find("moves").replaceChildren(...seen.ladders.flatMap((ladder) => [
    h("h2", {}, "Ladder ", h("small", {}, ladder.name)),
    h("ol", { class: "rungs" }, ladder.modes.map((mode, level) => h("li", { class: level !== ladder.level ? "" : level ? "now below" : "now", "aria-current": level === ladder.level },
      h("b", {}, mode.name), level === ladder.level - 1 && ladder.share ? `answers ${Math.round(100 * ladder.share)} %` : mode.check === "failed" ? "failed its check" : mode.check === "not checked" ? "not checked yet" : "",
      h("span", { class: "tag" }, `${mode.n_calls} calls${mode.n_failed ? `, ${mode.n_failed} failed` : ""}${mode.n_late ? `, ${mode.n_late} late` : ""}`)))),
    h("p", { class: "why" }, glued([ladder.dry_run ? "dry run: the first mode answers" : "", ladder.held ? "held by hand" : "", ladder.connected ? "" : "the store does not answer", ladder.why].filter(Boolean).join("; "))),
  ]), ...seen.rollouts.slice(-N_ROLLOUTS).reverse().flatMap((rollout) => [
    h("h2", {}, "Rollout ", h("small", {}, `${rollout.control} → ${rollout.candidate}`)),
    h("ol", { class: "stages" }, rollout.steps.map((share, stage) => h("li", { class: stage < rollout.stage || rollout.status === "done" ? "passed" : stage > rollout.stage ? "" : rollout.status === "rolled back" ? "left" : "now" }, percent(share)))),
    h("p", { class: "why" }, rollout.status === "running" ? "" : h("b", {}, rollout.status), rollout.status !== "running" && rollout.waiting ? ": " : "", glued(rollout.error || rollout.waiting)),
  ]));
}
function listEvents() {
  const list = find("events");
  if (!seen.events.length) { list.replaceChildren(h("li", { class: "none" }, "Nothing yet.")); return; }
  for (const old of list.querySelectorAll(".none")) old.remove();
  const known = new Set([...list.children].map((item) => item.dataset.id));
  for (const one of seen.events) {
    if (known.has(String(one.id))) continue;
    list.prepend(h("li", { class: one.tone, "data-id": one.id }, h("p", { class: "head-line" }, h("b", {}, one.source === "alarm" ? `alarm: ${one.word}` : one.word), h("span", {}, one.subject), h("time", {}, clock(one.at_s))), h("p", {}, glued(one.text))));
  }
  while (list.children.length > 100) list.lastChild.remove();
}
function link(kind, text) {
  linked = kind;
  find("link").className = `link ${kind}`;
  write(find("link").lastChild, text);
  find("charts").classList.toggle("stale", kind === "off");
}
function draw() {
  if (!got || paused) return;
  headline();
  moves();
  charts();
  listEvents();
}

// -- the stream ---------------------------------------------------------------------------------

function take(data, whole) {
  if (whole) { seen.models.clear(); seen.memory = []; seen.events = []; seen.wall = data.wall_s; find("events").replaceChildren(); }
  seen.at = data.at_s;
  [seen.inFlight, seen.ladders, seen.rollouts] = [data.in_flight, data.ladders, data.rollouts];
  [seen.notShown, seen.refused, seen.listeners] = [data.n_not_shown, data.n_refused, data.n_listeners];
  const oldest = seen.at - DATA.keptS;
  for (const model of data.models) {
    const key = `${model.model}\n${model.version}`;
    if (!seen.models.has(key)) seen.models.set(key, { ...model, points: [] });
    seen.models.get(key).points.push(...model.points);
  }
  for (const [key, model] of seen.models) {
    while (model.points.length && model.points[0].at_s < oldest) model.points.shift();
    if (!model.points.length) seen.models.delete(key);
  }
  seen.memory = [...seen.memory, ...data.memory].filter((point) => point.at_s >= oldest);
  const last = seen.events.length ? seen.events[seen.events.length - 1].id : 0;
  const fresh = data.events.filter((one) => one.id > last);
  seen.events = [...seen.events, ...fresh].slice(-200);
  if (!whole) for (const one of fresh) write(find("announced"), `${SOURCES[one.source]} ${one.subject}: ${one.word}, ${one.text}`);
  got = true;
  draw();
}
function listen() {
  const stream = new EventSource("events");
  stream.onopen = () => link("on", "live");
  stream.addEventListener("all", (event) => take(JSON.parse(event.data), true));
  stream.addEventListener("new", (event) => take(JSON.parse(event.data), false));
  stream.onerror = () => {
    link("off", "not connected: trying again");
    // a browser gives up for good where it was answered otherwise, as when too many listen
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

// -- what people do -----------------------------------------------------------------------------

find("pause").addEventListener("click", () => {
  paused = !paused;
  write(find("pause"), paused ? "Resume" : "Pause");
  find("pause").setAttribute("aria-pressed", String(paused));
  draw();
});
const root = document.documentElement, theme = find("theme"), system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
function settle() {
  write(theme, dark() ? "Light" : "Dark");
  theme.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  theme.setAttribute("aria-pressed", String(dark()));
}
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; settle(); });
system.addEventListener("change", settle);
addEventListener("resize", () => { if (got) charts(); });

if (DATA.buttons.length) {
  const row = find("buttons");
  row.hidden = false;
  row.append(h("span", {}, "Try it:"), ...DATA.buttons.map((label) => {
    const button = h("button", { type: "button" }, label);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        const answer = await fetch(`press/${encodeURIComponent(label)}`, { method: "POST", headers: { "X-Torchtriage-Key": DATA.key } });
        button.classList.toggle("sent", answer.ok);
        write(find("announced"), answer.ok ? `${label}: done` : `${label}: refused`);
      } catch { write(find("announced"), `${label}: the service does not answer`); }
      setTimeout(() => { button.disabled = false; button.classList.remove("sent"); }, 800);
    });
    return button;
  }));
}
settle();
listen();
})();
