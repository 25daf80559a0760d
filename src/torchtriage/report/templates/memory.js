"use strict";
// Draws the pictures of a memory page from its data block; all text is there without scripts.
// Names from snapshots only ever become text nodes; there is no innerHTML here.
(() => {
const DATA = JSON.parse(document.getElementById("data").textContent);
const NB = "\u00a0", SVG = "http://www.w3.org/2000/svg", WIDE = 1000, HIGH = 320;
const grouped = new Intl.NumberFormat("en-US");

function digits(x) {
  return x >= 99.95 ? x.toFixed(0) : x >= 9.995 ? x.toFixed(1) : x.toFixed(2);
}
function bytes(value) {
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1023.5) return `${unit === "B" ? size : digits(size)}${NB}${unit}`;
    size /= 1024;
  }
  return `${digits(size)}${NB}TiB`;
}
function time(us) {
  if (us < 1e3) return `${us}${NB}µs`;
  return us < 1e6 ? `${digits(us / 1e3)}${NB}ms` : `${digits(us / 1e6)}${NB}s`;
}
function el(tag, kind, text) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}
function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
function tint(area, index) {
  if (area.label === "before the recording" || area.label === "no stack recorded") return "mold";
  return area.kind === "other" ? "mrest" : `m${index % 10}`;
}
function lines(tip, rows) {
  tip.replaceChildren(...rows.filter((row) => row[0]).map(([text, kind]) => el("p", kind, text)));
}
function place(tip, box, event) {
  tip.hidden = false;
  const x = event.clientX - box.left, y = event.clientY - box.top;
  tip.style.left = x > box.width / 2 ? "" : `${x + 14}px`;
  tip.style.right = x > box.width / 2 ? `${box.width - x + 14}px` : "";
  tip.style.top = `${Math.max(Math.min(y + 12, box.height - tip.offsetHeight - 4), 2)}px`;
}

// -- memory over time ---------------------------------------------------------------------------

function overTime(home, picture) {
  const n = picture.entries.length, areas = picture.areas;
  const knows = picture.reserved.length > 0;
  const summed = picture.entries.map((_, i) => areas.reduce((sum, area) => sum + area.values[i], 0));
  const highest = Math.max(...(knows ? picture.reserved : summed), 1), top = highest * 1.1;
  const x = (i) => (i * WIDE) / n, y = (v) => HIGH - (v * HIGH) / top;
  const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none",
    role: "img", tabindex: "0", class: n > 200 ? "many" : "few", "aria-label": "Allocated memory over time by owner; "
    + "arrow keys move, the moment is read below" });
  const base = new Float64Array(n), levels = [];
  const paths = areas.map((area, index) => {
    let upper = "", lower = "";
    const low = Float64Array.from(base);
    for (let i = 0; i < n; i += 1) {
      base[i] += area.values[i];
      // memory changes in steps: a moment holds until the next
      if (i === 0 || base[i] !== base[i - 1] || low[i] !== low[i - 1]) {
        upper += `V${y(base[i]).toFixed(1)}`;
      }
      upper += `H${x(i + 1).toFixed(1)}`;
    }
    for (let i = n - 1; i >= 0; i -= 1) lower += `V${y(low[i]).toFixed(1)}H${x(i).toFixed(1)}`;
    levels.push(Float64Array.from(base));
    const path = shape("path", { class: tint(area, index),
      d: `M0 ${y(low[0]).toFixed(1)}${upper}${lower}Z` });
    svg.append(path);
    return path;
  });
  if (knows) {
    let line = `M0 ${y(picture.reserved[0]).toFixed(1)}`;
    picture.reserved.forEach((value, i) => { line += `V${y(value).toFixed(1)}H${x(i + 1).toFixed(1)}`; });
    svg.append(shape("path", { class: "reserved", d: line }));
  }
  const marks = [0.25, 0.5, 0.75, 1].map((part) => part * highest);
  for (const mark of marks) {
    svg.prepend(shape("line", { class: "grid", x1: 0, x2: WIDE, y1: y(mark), y2: y(mark) }));
  }
  const total = levels.length ? levels[levels.length - 1] : base;
  let peak = 0;
  total.forEach((value, i) => { if (value > total[peak]) peak = i; });
  const now = shape("line", { class: "now", y1: 0, y2: HIGH, visibility: "hidden" });
  svg.append(shape("line", { class: "top", y1: 0, y2: HIGH, x1: x(peak + 0.5), x2: x(peak + 0.5) }), now);
  const tip = el("div", "tip");
  tip.hidden = true;
  const frame = el("div", "frame over");
  frame.append(svg, tip);
  for (const mark of marks) {
    const label = el("span", "axis", bytes(mark));
    label.style.top = `${(y(mark) / HIGH) * 100}%`;
    frame.append(label);
  }
  const caption = el("p", "say");
  caption.setAttribute("aria-live", "polite");
  const list = el("ul", "owners");
  let held = -1, at = peak;
  const buttons = areas.map((area, index) => {
    const item = el("li"), button = el("button");
    button.type = "button";
    button.append(el("i", tint(area, index)), el("span", "", area.label), el("b"));
    button.setAttribute("aria-pressed", "false");
    button.title = area.stack.join("\n");
    button.addEventListener("click", () => {
      held = held === index ? -1 : index;
      paths.forEach((path, i) => path.classList.toggle("dim", held >= 0 && held !== i));
      buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(i === held)));
    });
    item.append(button);
    list.prepend(item); // as they lie: the topmost first
    return button;
  });
  function moment(i) {
    const when = picture.times[i] >= 0 ? `, ${time(picture.times[i])} in` : "";
    const entry = picture.entries[i] < 0 ? "before the first entry" : `entry ${grouped.format(picture.entries[i])}`;
    const held = knows ? `, ${bytes(picture.reserved[i])} reserved` : "";
    return `${entry}${when}: ${bytes(total[i])} allocated${held}`;
  }
  function go(i) {
    at = Math.max(0, Math.min(n - 1, i));
    now.setAttribute("visibility", "visible");
    now.setAttribute("x1", x(at + 0.5));
    now.setAttribute("x2", x(at + 0.5));
    caption.textContent = `${at === peak ? "The peak, " : "At "}${moment(at)}.`;
    buttons.forEach((button, index) => {
      button.lastChild.textContent = bytes(areas[index].values[at]);
    });
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const i = Math.max(0, Math.min(n - 1, Math.floor(((event.clientX - box.left) / box.width) * n)));
    const value = (1 - (event.clientY - box.top) / box.height) * top;
    const index = levels.findIndex((level) => level[i] > value);
    go(i);
    const area = areas[index];
    const rows = area
      ? [[area.label], [`${bytes(area.values[i])}, ${area.kind}`, "soft"],
        ...area.stack.slice(1).map((one) => [`called by ${one}`, "soft"])]
      : [[!knows ? "free" : value < picture.reserved[i] ? "reserved, not allocated" : "not reserved"]];
    lines(tip, [...rows, [moment(i), "soft"]]);
    place(tip, frame.getBoundingClientRect(), event);
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; go(peak); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    go(at + step);
  });
  home.append(frame, caption, list);
  go(peak);
}

// -- memory from step to step -------------------------------------------------------------------

function slope(home, growth) {
  const { steps, held, areas } = growth, n = steps.length, last = steps[n - 1];
  const [low, fit, high] = growth.slopes, [middle, level] = growth.middle;
  const x = (step) => ((step - steps[0]) / Math.max(last - steps[0], 1)) * WIDE;
  const line = (rate, step) => level + rate * (step - middle);
  const seen = [...held, line(fit, growth.from), line(fit, last)];
  const least = Math.min(...seen), most = Math.max(...seen), span = Math.max(most - least, 1);
  const bottom = least - span * 0.14, room = span * 1.3;
  const y = (v) => HIGH - ((v - bottom) / room) * HIGH;
  const draw = (tall, name) => shape("svg", { viewBox: `0 0 ${WIDE} ${tall}`,
    preserveAspectRatio: "none", role: "img", "aria-label": name });
  const upper = draw(HIGH, "Memory by step, with the fitted line"), frame = el("div", "frame slope");
  const tip = el("div", "tip");
  tip.hidden = true;
  const axis = (box, top, text, kind) => {
    const label = el("span", `axis ${kind || ""}`, text);
    label.style.top = `${top}%`;
    box.append(label);
  };
  const marks = [0, 0.5, 1].map((part) => least + part * span);
  for (const mark of span > 1 ? marks : [least]) {
    upper.append(shape("line", { class: "grid", x1: 0, x2: WIDE, y1: y(mark), y2: y(mark) }));
    axis(frame, (y(mark) / HIGH) * 100, bytes(Math.round(mark)), mark === least ? "low" : "");
  }
  const ends = [growth.from, last];
  const wedge = [...ends.map((at, i) => [at, line(i ? high : low, at)]),
    [last, line(low, last)], [growth.from, line(high, growth.from)]];
  const centre = [middle, level];
  const triangle = (a, b) => `M${[centre, a, b].map(([at, v]) => `${x(at).toFixed(1)} ${y(v).toFixed(1)}`).join("L")}Z`;
  upper.append(shape("path", { class: "wedge", d: triangle(wedge[1], wedge[2]) + triangle(wedge[0], wedge[3]) }));
  upper.append(shape("polyline", { class: "held", points: steps.map((at, i) => `${x(at).toFixed(1)},${y(held[i]).toFixed(1)}`).join(" ") }));
  upper.append(shape("line", { class: growth.leak ? "fit leak" : "fit", x1: x(ends[0]), x2: x(last),
    y1: y(line(fit, ends[0])), y2: y(line(fit, last)) }));
  const now = shape("line", { class: "now", y1: 0, y2: HIGH, visibility: "hidden" });
  if (growth.leak) upper.append(shape("line", { class: "top", y1: 0, y2: HIGH, x1: x(ends[0]), x2: x(ends[0]) }));
  upper.append(now);
  frame.append(upper, tip);
  const caption = el("p", "say"), list = el("ul", "owners"), boxes = [frame];
  const sums = new Float64Array(n);
  if (areas.length) {
    const tall = 120, lower = draw(tall, "What the growing stacks have left behind, by step");
    const under = el("div", "frame slope under");
    const total = Math.max(...steps.map((_, i) => areas.reduce((sum, area) => sum + area.values[i], 0)), 1);
    const deep = (v) => tall - (v / (total * 1.4)) * tall;
    areas.forEach((area, index) => {
      const before = Float64Array.from(sums);
      area.values.forEach((value, i) => { sums[i] += value; });
      const way = (values) => steps.map((at, i) => `${x(at).toFixed(1)} ${deep(values[i]).toFixed(1)}`);
      lower.append(shape("path", { class: tint(area, index), d: `M${[...way(sums), ...way(before).reverse()].join("L")}Z` }));
      const item = el("li"), row = el("span", "row");
      row.append(el("i", tint(area, index)), el("span", "", area.label), el("b", "", bytes(area.values[n - 1])));
      row.title = area.stack.join("\n");
      item.append(row);
      list.append(item);
    });
    axis(under, (deep(total) / tall) * 100, bytes(total));
    under.append(lower);
    boxes.push(under);
  }
  const scale = el("p", "scale");
  scale.append(el("span", "", `step ${grouped.format(steps[0])}`), el("span", "", `step ${grouped.format(last)}`));
  function tell(i) {
    const share = areas.length ? `, ${bytes(sums[i])} of it left behind by growing stacks` : "";
    return `step ${grouped.format(steps[i])}: ${bytes(held[i])}${share}`;
  }
  frame.addEventListener("pointermove", (event) => {
    const box = upper.getBoundingClientRect();
    const at = steps[0] + ((event.clientX - box.left) / box.width) * (last - steps[0]);
    let i = steps.findIndex((step) => step >= at);
    if (i < 0) i = n - 1;
    if (i > 0 && at - steps[i - 1] < steps[i] - at) i -= 1;
    now.setAttribute("visibility", "visible");
    now.setAttribute("x1", x(steps[i]));
    now.setAttribute("x2", x(steps[i]));
    lines(tip, [[tell(i)]]);
    place(tip, frame.getBoundingClientRect(), event);
  });
  frame.addEventListener("pointerleave", () => { tip.hidden = true; now.setAttribute("visibility", "hidden"); });
  caption.textContent = `At ${tell(n - 1)}.`;
  home.append(...boxes, scale, caption, list);
}

// -- the segments at the peak -------------------------------------------------------------------

const colours = () => {
  const style = getComputedStyle(document.documentElement), seen = new Map();
  const probe = document.body.appendChild(el("i"));
  const read = (name) => {
    if (!seen.has(name)) {
      probe.style.color = `var(--${name})`;
      seen.set(name, getComputedStyle(probe).color || style.color);
    }
    return seen.get(name);
  };
  return { read, done: () => probe.remove() };
};
const redraws = [];

function blockMap(home, picture) {
  const rows = picture.segments, areas = picture.areas;
  const gap = rows.length > 40 ? 2 : 3, high = rows.length > 40 ? 9 : rows.length > 12 ? 16 : 22;
  const largest = Math.max(...rows.map((row) => row.size), 1);
  const frame = el("div", "frame map"), canvas = el("canvas"), tip = el("div", "tip");
  tip.hidden = true;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${rows.length} segments at the peak, one row each`);
  frame.append(canvas, tip);
  home.append(frame);
  // the smallest segment still gets a bar one can see
  const width = (size, room) => Math.max(room * Math.sqrt(size / largest), 14);
  function draw() {
    const room = frame.clientWidth, tall = rows.length * (high + gap) + gap;
    const scale = window.devicePixelRatio || 1;
    canvas.width = room * scale;
    canvas.height = tall * scale;
    canvas.style.height = `${tall}px`;
    const pen = canvas.getContext("2d"), tone = colours();
    pen.scale(scale, scale);
    const fill = (kind) => kind === -1 ? tone.read("sunk") : kind === -2 ? tone.read("fill-wait")
      : kind === -3 ? tone.read("soft") : tone.read(tint(areas[kind], kind));
    rows.forEach((row, index) => {
      const top = gap + index * (high + gap), wide = width(row.size, room - 8);
      pen.fillStyle = tone.read("sunk");
      pen.fillRect(4, top, wide, high);
      for (const [start, end, kind] of row.pieces) {
        if (kind === -1) continue;
        const left = 4 + (start / row.size) * wide;
        pen.fillStyle = fill(kind);
        pen.fillRect(left, top, Math.max(((end - start) / row.size) * wide - 0.3, 0.7), high);
      }
      pen.strokeStyle = tone.read("line");
      pen.strokeRect(4.5, top + 0.5, wide - 1, high - 1);
    });
    tone.done();
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const index = Math.floor((event.clientY - box.top - gap / 2) / (high + gap));
    const row = rows[index];
    if (!row) { tip.hidden = true; return; }
    const place01 = (event.clientX - box.left - 4) / width(row.size, frame.clientWidth - 8);
    const at = place01 * row.size;
    const piece = row.pieces.find(([start, end]) => at >= start && at < end);
    const texts = [[`segment of ${row.label}, ${bytes(row.allocated)} of it allocated`, "soft"]];
    if (piece) {
      const size = bytes(piece[1] - piece[0]);
      const name = piece[2] === -1 ? "free" : piece[2] === -2 ? "freed, another stream still uses it"
        : piece[2] === -3 ? "several small blocks" : areas[piece[2]].label;
      texts.unshift([`${name}, ${size}`]);
    }
    lines(tip, texts);
    place(tip, frame.getBoundingClientRect(), event);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  redraws.push(draw);
  draw();
}

DATA.growing.forEach((growth) => slope(document.getElementById(`slope-${growth.id}`), growth));
DATA.pictures.forEach((picture) => {
  overTime(document.getElementById(`over-${picture.id}`), picture);
  if (picture.segments.length) blockMap(document.getElementById(`map-${picture.id}`), picture);
});

// -- light and dark -----------------------------------------------------------------------------

const root = document.documentElement, theme = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
function settle() {
  theme.textContent = dark() ? "Light" : "Dark";
  theme.setAttribute("aria-pressed", String(dark()));
  redraws.forEach((draw) => draw());
}
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; settle(); });
system.addEventListener("change", settle);
window.addEventListener("resize", () => redraws.forEach((draw) => draw()));
document.getElementById("bar").hidden = false;
settle();
})();
