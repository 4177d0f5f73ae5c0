// The live page. Draws what /api/snapshot says; asks for new epochs every second.
"use strict";

const POLL_MS = 1000;
const KEPT = 3600; // epochs, as many as the server keeps
const DRAWN = 360; // points of a line; beyond that, neighbours are joined
const COLOURS = 10;
const FRESH_MS = 5000; // for how long key groups that have changed hands are outlined
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const wanted = new URLSearchParams(location.search);

const data = { points: [], marks: [], assignments: {}, executors: [], operators: [], sources: [], now: 0 };
// 0 seconds are all there is.
const view = { seconds: Number(wanted.get("seconds") ?? 300), operator: null, hover: null, skew: 0 };

// Words and numbers.

const number = new Intl.NumberFormat("en-US");
function scaled(value, units, base = 1000, digits = 3) {
  let at = 0;
  while (value >= base * 0.9995 && at < units.length - 1) { value /= base; at++; }
  const text = value >= 100 || at === 0 ? Math.round(value).toString() : value.toPrecision(digits);
  return [text, units[at]];
}
const count = (v) => scaled(v, ["", "k", "M", "G"]).join("");
const bytes = (v) => scaled(v, ["B", "kB", "MB", "GB", "TB"]).join(" ");
const round = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1e3).toPrecision(3)} s`;
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ${Math.round((ms % 60e3) / 1e3)} s`;
  if (ms < 86400e3 * 3) return `${Math.floor(ms / 3600e3)} h ${Math.round((ms % 3600e3) / 60e3)} min`;
  return `${Math.round(ms / 86400e3)} days`;
}
const clock = (ms, seconds = true) => new Date(ms).toLocaleTimeString("en-GB",
  seconds ? {} : { hour: "2-digit", minute: "2-digit" });
const moment = (ms) => Date.now() - ms > 86400e3 || ms - Date.now() > 86400e3
  ? new Date(ms).toISOString().slice(0, 16).replace("T", " ") : clock(ms);
const median = (values) => quantile(values, 0.5);
function quantile(values, q) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];
}

// The document.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children.filter((c) => c !== null));
  return made;
}
function drawn(tag, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}
const colour = (name) => {
  // Without executors of their own, as in one local process, shards have colours.
  if (name.startsWith("shard ")) return `var(--e${Number(name.slice(6)) % COLOURS})`;
  const at = data.executors.findIndex((e) => e.name === name);
  return at < 0 ? "var(--none)" : `var(--e${at % COLOURS})`;
};

// What the server says.

function take(snapshot) {
  const known = data.points.length ? data.points[data.points.length - 1].epoch : 0;
  if (snapshot.query !== data.query || snapshot.epoch < known) {
    data.points = []; data.assignments = {};
  }
  for (const row of snapshot.points) {
    const point = Object.fromEntries(snapshot.columns.map((name, i) => [name, row[i]]));
    const last = data.points[data.points.length - 1];
    if (last && last.epoch >= point.epoch) {
      // The newest are sent again: what only Spark knows of an epoch comes a little later.
      const at = data.points.findIndex((p) => p.epoch === point.epoch);
      if (at >= 0) data.points[at] = point;
    } else data.points.push(point);
  }
  data.points.splice(0, data.points.length - KEPT);
  for (const [name, changes] of Object.entries(snapshot.assignments)) {
    const past = (data.assignments[name] ??= []);
    for (const change of changes) {
      if (past.length && past[past.length - 1].epoch >= change.epoch) continue;
      past.push({ epoch: change.epoch, shards: change.shards, owners: owners(change, snapshot.keyGroups) });
    }
  }
  for (const name of ["query", "location", "keyGroups", "state", "error", "epoch", "sourceRows", "marks",
    "executors", "operators", "sources"]) data[name] = snapshot[name];
  view.skew = snapshot.now - Date.now();
}
function owners(change, groups) {
  const found = new Array(groups).fill("");
  change.groups.forEach((ranges, shard) => {
    for (const part of ranges ? ranges.split(",") : []) {
      const [first, last] = part.split("-").map(Number);
      for (let g = first; g <= (last ?? first); g++) found[g] = change.executors ? change.executors[shard] : `shard ${shard}`;
    }
  });
  return found;
}

async function poll() {
  try {
    const last = data.points.length ? data.points[data.points.length - 1].epoch : 0;
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const answer = await fetch(`api/snapshot?after=${Math.max(0, last - 20)}`, { headers, cache: "no-store" });
    if (answer.status === 401) throw new Error("This page needs its token: open the address that ends in #token=…");
    if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
    take(await answer.json());
    data.lost = null;
  } catch (error) {
    data.lost = error instanceof TypeError ? "The page's server does not answer; the query may have ended." : error.message;
  }
  draw();
  setTimeout(poll, POLL_MS);
}

// Series: what is shown of the window, joined to at most DRAWN points.

function range() {
  const now = Date.now() + view.skew;
  const last = data.points.length ? data.points[data.points.length - 1].time_ms : now;
  const end = data.state === "running" || now - last < 10e3 ? now : last + 1000;
  const first = data.points.length ? data.points[0].time_ms : end - 60e3;
  const begin = view.seconds ? Math.max(end - view.seconds * 1e3, Math.min(first, end - 20e3)) : first;
  return [Math.min(begin, end - 5e3), end];
}
function series([begin, end]) {
  const starts = data.marks.filter((m) => m.kind === "start" && m.title.endsWith("again")).map((m) => m.time_ms);
  const found = [];
  let before = null;
  for (const point of data.points) {
    if (point.time_ms >= begin - 5e3 && point.time_ms <= end) {
      const gap = before ? point.time_ms - before.time_ms : point.took_ms ?? 1000;
      const rows = point.rows ?? point.changed;
      const fresh = before && starts.some((t) => t > before.time_ms && t <= point.time_ms);
      found.push({ ...point, rows, gap: fresh ? point.took_ms ?? gap : gap, took: point.took_ms ?? gap, fresh,
        lag: point.watermark_ms === null || point.watermark_ms <= 0 ? null : point.time_ms - point.watermark_ms });
    }
    before = point;
  }
  const join = Math.ceil(found.length / DRAWN);
  const joined = [];
  for (let at = 0; at < found.length; at += join) {
    const part = found.slice(at, at + join);
    const last = part[part.length - 1];
    const rows = part.reduce((sum, p) => sum + p.rows, 0);
    const gap = part.reduce((sum, p) => sum + p.gap, 0);
    joined.push({ ...last, rate: rows / Math.max(gap, 1) * 1e3, took: Math.max(...part.map((p) => p.took)),
      fresh: part.some((p) => p.fresh) });
  }
  // Epochs follow each other unevenly; a rate is the mean over about two seconds.
  const smooth = joined.map((point, at) => {
    let rows = 0, gap = 0;
    for (let i = at; i >= 0 && gap < 2000; i--) {
      rows += joined[i].rate * joined[i].gap; gap += joined[i].gap;
      if (joined[i].fresh) break;
    }
    return { ...point, rate: gap ? rows / gap : point.rate };
  });
  return smooth;
}

// Charts.

const MARGIN = { left: 52, right: 14, bottom: 20 };
const CHARTS = [
  { id: "throughput", title: "Throughput", note: () => data.sourceRows ? "source rows per second" : "rows per second into the shards", value: (p) => p.rate, format: count, unit: "/s", tags: true },
  { id: "latency", title: "Epoch latency", note: () => "from trigger to commit, logarithmic", value: (p) => Math.max(p.took, 1), format: duration, log: true },
  { id: "size", title: "State", note: () => "bytes of live segments", value: (p) => p.state_bytes, format: bytes },
];

function niceTicks(top, parts) {
  const raw = top / parts;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].map((m) => m * power).find((u) => u >= raw * 0.999);
  const ticks = [];
  for (let v = 0; v < top + unit; v += unit) ticks.push(v);
  return ticks;
}
function scaleOf(chart, points) {
  const values = points.map(chart.value);
  if (!chart.log) {
    const ticks = niceTicks(Math.max(...values, 1) * 1.02, 4);
    const top = ticks[ticks.length - 1];
    return { ticks, at: (v) => v / top };
  }
  const all = [];
  for (let power = 0; power < 8; power++) for (const m of [1, 2, 5]) all.push(m * 10 ** power);
  const low = Math.min(...values), high = Math.max(...values, low * 2);
  const bottom = all.findLast((t) => t <= low * 0.95) ?? all[0];
  const top = all.find((t) => t >= high * 1.02) ?? all[all.length - 1];
  const span = Math.log(top / bottom);
  let ticks = all.filter((t) => t >= bottom && t <= top);
  if (ticks.length > 6) ticks = ticks.filter((t) => /^10*$/.test(String(t)) || t === top || t === bottom);
  return { ticks, at: (v) => Math.log(Math.max(v, bottom) / bottom) / span };
}
function timeTicks(begin, end, width) {
  const steps = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400];
  const step = (steps.find((s) => (end - begin) / 1e3 / s <= width / 95) ?? 86400) * 1e3;
  const ticks = [];
  for (let t = Math.ceil(begin / step) * step; t <= end; t += step) ticks.push([t, clock(t, step < 60e3)]);
  return ticks;
}

function canvas(id, title, note, [begin, end], top) {
  const card = $(id);
  if (!card.firstChild) {
    card.append(element("div", { className: "head" }, element("h2"), element("span", { className: "note" })), drawn("svg", { class: id }));
    card.querySelector("svg").addEventListener("pointermove", hover);
    card.querySelector("svg").addEventListener("pointerleave", () => { view.hover = null; draw(); });
  }
  card.querySelector("h2").textContent = title;
  card.querySelector(".note").textContent = note;
  const svg = card.querySelector("svg");
  const width = svg.clientWidth || 800, height = svg.clientHeight || 160;
  const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
  const x = (t) => MARGIN.left + (t - begin) / (end - begin) * (right - MARGIN.left);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  return { svg, height, right, bottom, x, top };
}
function drawTime(svg, [begin, end], x, height, right) {
  const bottom = height - MARGIN.bottom;
  svg.append(drawn("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
  for (const [t, text] of timeTicks(begin, end, right - MARGIN.left)) {
    if (x(t) > MARGIN.left + 12 && x(t) < right - 12) svg.append(drawn("text", { x: x(t), y: height - 4, "text-anchor": "middle" }, text));
  }
}
function drawOwners(points, span) {
  const past = data.assignments[view.operator] ?? [];
  const { svg, height, right, bottom, x, top } = canvas("owners", "Key groups by executor", "who had how many, over time", span, 8);
  const shown = points.filter((p) => p.time_ms >= span[0]);
  const groups = data.keyGroups || 1;
  const y = (n) => bottom - n / groups * (bottom - top);
  const spans = [];
  let index = 0;
  shown.forEach((point, i) => {
    while (index + 1 < past.length && past[index + 1].epoch <= point.epoch) index++;
    if (!past[index] || past[index].epoch > point.epoch) return;
    const from = i && !point.fresh ? shown[i - 1].time_ms : Math.max(span[0], point.time_ms - point.gap);
    const last = spans[spans.length - 1];
    if (last && last.index === index && !point.fresh) last.to = point.time_ms;
    else spans.push({ index, from, to: point.time_ms });
  });
  for (const part of spans) {
    const counts = new Map();
    for (const owner of past[part.index].owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
    let below = 0;
    for (const name of [...data.executors.map((e) => e.name), ...counts.keys()]) {
      const n = counts.get(name);
      if (!n) continue;
      counts.delete(name);
      svg.append(drawn("rect", { class: "stack", x: x(part.from).toFixed(1), width: Math.max(x(part.to) - x(part.from) + 0.3, 1).toFixed(1),
        y: y(below + n).toFixed(1), height: (y(below) - y(below + n)).toFixed(1), style: `fill:${colour(name)}` }));
      below += n;
    }
  }
  for (const n of [0, groups / 2, groups]) svg.append(drawn("text", { x: MARGIN.left - 7, y: y(n) + 4, "text-anchor": "end" }, String(n)));
  drawTime(svg, span, x, height, right);
  drawMarks(svg, {}, span, x, bottom, right, top);
  drawCursor(svg, points, x, top, bottom);
}
function drawCursor(svg, points, x, top, bottom) {
  const point = view.hover && nearest(points);
  if (point) svg.append(drawn("line", { class: "cursor", x1: x(point.time_ms), x2: x(point.time_ms), y1: top, y2: bottom }));
  return point;
}

function drawChart(chart, points, [begin, end]) {
  const { svg, height, right, bottom, x, top } = canvas(chart.id, chart.title, chart.note(), [begin, end], chart.tags ? 32 : 8);
  const scale = points.length ? scaleOf(chart, points) : { ticks: [], at: () => 0 };
  const y = (v) => bottom - Math.min(Math.max(scale.at(v), 0), 1) * (bottom - top);
  for (const mark of data.marks) {
    if (mark.end_ms && mark.end_ms > begin && mark.time_ms < end) {
      const from = Math.max(x(mark.time_ms), MARGIN.left), to = Math.min(x(mark.end_ms), right);
      svg.append(drawn("rect", { class: "band", x: from, y: top, width: Math.max(to - from, 1.5), height: bottom - top }));
    }
  }
  for (const tick of scale.ticks) {
    svg.append(drawn("line", { class: "rule", x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) }));
    svg.append(drawn("text", { x: MARGIN.left - 7, y: y(tick) + 4, "text-anchor": "end" }, round(chart.format(tick))));
  }
  drawTime(svg, [begin, end], x, height, right);
  drawLine(svg, chart, points.filter((p) => p.time_ms >= begin), x, y, bottom);
  drawMarks(svg, chart, [begin, end], x, bottom, right, top);
  if (!points.length) svg.append(drawn("text", { x: (MARGIN.left + right) / 2, y: height / 2, "text-anchor": "middle" }, "waiting for the first epoch"));
  const point = drawCursor(svg, points, x, top, bottom);
  if (point) svg.append(drawn("circle", { class: "dot", cx: x(point.time_ms), cy: y(chart.value(point)), r: 4 }));
}
function drawLine(svg, chart, points, x, y, bottom) {
  const parts = [];
  for (const point of points) {
    if (!parts.length || point.fresh) parts.push([]);
    parts[parts.length - 1].push(point);
  }
  for (const part of parts) {
    let line = "";
    part.forEach((point, i) => {
      const px = x(point.time_ms).toFixed(1), py = y(chart.value(point)).toFixed(1);
      line += `${i ? "L" : "M"}${px} ${py}`;
    });
    const from = x(part[0].time_ms).toFixed(1), to = x(part[part.length - 1].time_ms).toFixed(1);
    if (!chart.log) svg.append(drawn("path", { class: "area", d: `${line}L${to} ${bottom}L${from} ${bottom}Z` }));
    svg.append(drawn("path", { class: "line", d: line }));
  }
}
function drawMarks(svg, chart, [begin, end], x, bottom, right, top) {
  // Failures and moves are named first; what finds no room in two rows is named in the list only.
  const rank = (mark) => mark.kind === "lost" || mark.kind === "failed" ? 0 : mark.end_ms || mark.state ? 1 : 2;
  const taken = [[], []];
  const shown = data.marks.filter((m) => m.time_ms >= begin && m.time_ms <= end && m.kind !== "joined" && m.kind !== "left");
  for (const mark of [...shown].sort((a, b) => rank(a) - rank(b))) {
    const at = x(mark.time_ms), kind = `k-${mark.kind}`;
    let from = top;
    if (chart.tags) {
      const wide = mark.title.length * 6.4 + 8;
      const left = Math.min(at, right - wide + 8);
      const row = taken.findIndex((spans) => spans.every(([a, b]) => left > b || left + wide < a));
      if (row >= 0) {
        taken[row].push([left, left + wide]);
        from = row ? 16 : 28;
        svg.append(drawn("text", { class: `tag ${kind}`, x: left, y: row ? 11 : 25 }, mark.title));
      }
    }
    svg.append(drawn("line", { class: `mark ${kind}`, x1: at, x2: at, y1: from, y2: bottom }));
  }
}
function nearest(points) {
  let best = null;
  for (const point of points) {
    if (!best || Math.abs(point.time_ms - view.hover.time) < Math.abs(best.time_ms - view.hover.time)) best = point;
  }
  return best;
}
function hover(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const [begin, end] = range();
  const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
  view.hover = share < 0 || share > 1 ? null : { time: begin + share * (end - begin), x: event.clientX, y: event.clientY };
  draw();
}
function drawTip(points) {
  const point = view.hover && nearest(points);
  let tip = $("tip");
  if (!point) { tip?.remove(); return null; }
  if (!tip) { tip = element("div", { id: "tip" }); document.body.append(tip); }
  const line = (label, value) => element("div", {}, element("span", { textContent: label }), element("b", { textContent: value }));
  tip.replaceChildren(
    line(`epoch ${number.format(point.epoch)}`, clock(point.time_ms)), line("rows", number.format(point.rows)),
    line("rate", `${count(point.rate)}/s`), line("latency", duration(point.took)),
    line("state", `${bytes(point.state_bytes)}, ${count(point.state_rows)} rows`), line("written", bytes(point.written)),
    line("shards", String(point.shards)), ...(point.lag === null ? [] : [line("watermark lag", duration(point.lag))]));
  const wide = tip.offsetWidth, beyond = view.hover.x + wide + 24 > innerWidth;
  tip.style.left = `${beyond ? view.hover.x - wide - 16 : view.hover.x + 16}px`;
  tip.style.top = `${Math.min(view.hover.y + 12, innerHeight - tip.offsetHeight - 8)}px`;
  return point;
}

// Tiles, key groups, lists.

function drawTiles() {
  const now = Date.now() + view.skew;
  const all = data.points, last = all[all.length - 1];
  const until = data.state === "running" || !last ? now : last.time_ms;
  const recent = series([until - 10e3, until]);
  const minute = series([until - 60e3, until]);
  const span = recent.reduce((sum, p) => sum + p.gap, 0);
  const rate = span ? recent.reduce((sum, p) => sum + p.rows, 0) / span * 1e3 : 0;
  const took = minute.map((p) => p.took);
  const alive = data.executors.filter((e) => e.alive).length;
  const busy = last ? last.executors : 0;
  const [rateText, rateUnit] = scaled(rate, ["", "k", "M"]);
  const tiles = [["Throughput", last ? rateText : "–", `${rateUnit} rows/s`, "mean of the last 10 s"]];
  const p50 = median(took), p99 = quantile(took, 0.99);
  const [latencyText, latencyUnit] = p50 === null ? ["–", ""] : duration(p50).split(" ");
  tiles.push(["Epoch latency", latencyText, `${latencyUnit} p50`, p99 === null ? "no epoch in the last minute" : `p99 ${duration(p99)} in the last minute`]);
  const [sizeText, sizeUnit] = scaled(last?.state_bytes ?? 0, ["B", "kB", "MB", "GB", "TB"]);
  tiles.push(["State", last ? sizeText : "–", sizeUnit, last ? `${number.format(last.state_rows)} rows` : ""]);
  tiles.push(["Epoch", last ? number.format(last.epoch) : "–", "", last ? `committed ${duration(Math.max(0, now - last.time_ms))} ago` : "none yet"]);
  const mark = last?.watermark_ms > 0 ? last.watermark_ms : null;
  tiles.push(["Watermark", mark === null ? "none" : moment(mark), "", mark === null ? "the query has no event time" : `${duration(Math.max(0, last.time_ms - mark))} behind`]);
  const live = data.state === "running";
  tiles.push(["Shards", last ? String(last.shards) : "–", "", live && alive ? `${busy || 1} of ${alive} executors have key groups` : `on ${busy || "any"} executors`]);
  $("tiles").replaceChildren(...tiles.map(([label, value, unit, sub]) => element("div", { className: "tile" },
    element("div", { className: "label", textContent: label }),
    element("div", { className: "value" }, value, unit ? element("small", { textContent: unit }) : null),
    element("div", { className: "sub", textContent: sub, title: sub }))));
}

function drawMap(at) {
  const names = Object.keys(data.assignments).sort();
  if (!names.includes(view.operator)) view.operator = names[0] ?? null;
  const select = $("operator");
  select.hidden = names.length < 2;
  if (select.options.length !== names.length) {
    select.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
  }
  select.value = view.operator ?? "";
  const past = data.assignments[view.operator] ?? [];
  const epoch = at ? at.epoch : Infinity;
  let index = past.length - 1;
  while (index > 0 && past[index].epoch > epoch) index--;
  const current = past[index], before = past[index - 1];
  $("map-when").textContent = at ? `at epoch ${at.epoch}` : current ? `since epoch ${current.epoch}` : "";
  const grid = $("grid"), groups = data.keyGroups ?? 0;
  const across = groups > 1024 ? 64 : groups > 256 ? 32 : 16;
  grid.style.gridTemplateColumns = `repeat(${across}, 1fr)`;
  if (grid.childElementCount !== groups) grid.replaceChildren(...Array.from({ length: groups }, () => element("i")));
  const counts = new Map();
  const flipped = current && data.points.find((p) => p.epoch === current.epoch);
  const fresh = !at && before && flipped && Date.now() + view.skew - flipped.time_ms < FRESH_MS;
  [...grid.children].forEach((cell, group) => {
    const owner = current ? current.owners[group] : "";
    counts.set(owner, (counts.get(owner) ?? 0) + 1);
    const fill = colour(owner);
    if (cell.style.backgroundColor !== fill) cell.style.backgroundColor = fill;
    cell.className = fresh && before.owners[group] !== owner ? "fresh" : "";
    cell.title = `key group ${group}: ${owner || "anywhere"}`;
  });
  const lost = new Set(data.marks.filter((m) => m.kind === "lost").map((m) => m.title.replace(/ lost$/, "")));
  const rows = data.executors.map((e) => ({ ...e, groups: counts.get(e.name) ?? 0 }));
  for (const [name, n] of counts) if (name.startsWith("shard ")) rows.push({ name, alive: null, groups: n });
  $("legend").replaceChildren(...rows.map((row) => {
    const gone = row.alive === false || lost.has(row.name);
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colour(row.name);
    const state = lost.has(row.name) ? "lost" : row.alive === false ? "gone" : row.groups ? "" : "idle";
    return element("li", {}, swatch, element("span", { textContent: row.name, className: gone ? "gone" : "" }),
      element("span", { className: "bar", textContent: row.groups ? `${row.groups} key groups` : "" }),
      element("span", { className: `tagged ${state === "lost" ? "bad" : ""}`, textContent: state }));
  }));
}

function timeOf(operator) {
  // Without event time there is no watermark, and no row is late; state may have a time to live.
  const parts = operator.watermark_ms > 0 ? [`watermark ${moment(operator.watermark_ms)}`] : [];
  if (operator.watermark_ms !== null) parts.push(`${number.format(operator.late)} late`);
  if (operator.watermark_ms !== null || operator.evicted) parts.push(`${number.format(operator.evicted)} evicted`);
  return parts.join(" · ");
}
function drawLists() {
  $("operators").tBodies[0].replaceChildren(...data.operators.flatMap((o) => {
    const row = element("tr", {},
      element("td", { textContent: o.name }), element("td", { className: "n", textContent: number.format(o.rows) }),
      element("td", { className: "n", textContent: bytes(o.bytes) }), element("td", { className: "n", textContent: String(o.shards) }));
    const inTime = timeOf(o);
    return inTime ? [row, element("tr", { className: "time" }, element("td", { colSpan: 4, textContent: inTime }))] : [row];
  }));
  // Sources that number their rows, as Kafka's do; others do not tell.
  const told = data.sources.filter((s) => s.rows_behind !== null);
  $("sources-card").hidden = !told.length;
  $("sources").tBodies[0].replaceChildren(...told.map((s) => element("tr", {},
    element("td", { className: "name", textContent: s.source, title: s.source }),
    element("td", { className: "n", textContent: number.format(s.rows_behind) }),
    element("td", { className: "n", textContent: s.seconds_behind === null ? "unknown" : duration(s.seconds_behind * 1e3) }))));
  const shown = [...data.marks].reverse().slice(0, 100);
  $("events").replaceChildren(...(shown.length ? shown.map((m) => element("li", { className: `k-${m.kind}` },
    element("time", { textContent: clock(m.time_ms) }),
    element("div", { className: "what" }, m.title, m.state && m.state !== "done" ? element("span", { textContent: m.state }) : null),
    m.detail ? element("div", { className: "detail", textContent: m.detail }) : null))
    : [element("li", { className: "empty", textContent: "none yet" })]));
}

function drawHead() {
  $("location").textContent = data.location ?? "";
  const last = data.points[data.points.length - 1];
  const age = last ? Date.now() + view.skew - last.time_ms : Infinity;
  const state = $("state");
  const shown = data.lost ? ["no answer", "failed"]
    : data.state === "watched" ? age < 15e3 ? ["committing", "running"] : [last ? `quiet for ${duration(age)}` : "no epoch yet", ""]
      : [data.state ?? "connecting", data.state ?? ""];
  state.textContent = shown[0];
  state.className = `pill ${shown[1]}`;
  const problem = data.lost || data.error;
  $("error").hidden = !problem;
  $("error").textContent = problem || "";
  $("query").textContent = data.query ? `query ${data.query} · ${data.keyGroups} key groups` : "";
  for (const button of $("window").children) button.setAttribute("aria-pressed", Number(button.dataset.seconds) === view.seconds);
  document.title = last ? `Millrace · epoch ${last.epoch}` : "Millrace";
}

function draw() {
  const span = range();
  const points = series(span);
  drawHead();
  drawTiles();
  for (const chart of CHARTS) drawChart(chart, points, span);
  drawMap(drawTip(points));
  drawOwners(points, span);
  drawLists();
}

// Controls.

function theme(name) {
  document.documentElement.dataset.theme = name;
}
const dark = matchMedia("(prefers-color-scheme: dark)");
theme(wanted.get("theme") ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
$("window").addEventListener("click", (event) => {
  const seconds = event.target.dataset.seconds;
  if (seconds !== undefined) { view.seconds = Number(seconds); draw(); }
});
$("operator").addEventListener("change", (event) => { view.operator = event.target.value; draw(); });
addEventListener("resize", draw);
poll();
