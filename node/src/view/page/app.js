// Shows what /api/state says, once a second. Nothing is loaded from anywhere else.
"use strict";

const STATES = ["training", "exchanging", "joining", "finished", "suspected", "gone"];
const SECONDS_KEPT = 600;
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const curves = new Map(); // peer -> [[position, loss], ...]
const times = { rate: [], swarm: [], consensus: [], sent: [], received: [] };
const places = new Map(); // peer -> {x, y, vx, vy}
let state = null;
let picked = null;
let newest = -1;
let lost = 0;

function node(parent, name, attributes, text) {
  const it = document.createElementNS(SVG, name);
  for (const key in attributes) {
    // The content policy allows no style attributes; this is none.
    if (key === "style") it.style.cssText = attributes[key];
    else it.setAttribute(key, attributes[key]);
  }
  if (text !== undefined) it.textContent = text;
  parent.appendChild(it);
  return it;
}

function element(parent, name, text, className) {
  const it = document.createElement(name);
  if (text !== undefined) it.textContent = text;
  if (className) it.className = className;
  parent.appendChild(it);
  return it;
}

function scaled(value, unit) {
  if (value === null || value === undefined) return "–";
  let prefix = "";
  for (const next of ["k", "M", "G", "T"]) {
    if (Math.abs(value) < 999.5) break;
    value /= 1000;
    prefix = next;
  }
  const digits = prefix === "" && Number.isInteger(value) ? 0 : value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return value.toFixed(digits) + " " + prefix + (unit || "");
}

function small(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return Math.abs(value) < 0.001 || Math.abs(value) >= 1e5 ? value.toExponential(1) : value.toPrecision(3);
}

function ago(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return Math.round(1000 * seconds) + " ms";
  if (seconds < 90) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  const minutes = Math.floor(seconds / 60);
  return minutes < 90 ? minutes + " min" : (minutes / 60).toFixed(1) + " h";
}

function elapsed(seconds) {
  if (seconds < 120) return seconds.toFixed(0) + " s";
  const [value, unit] = seconds < 7200 ? [seconds / 60, " min"] : [seconds / 3600, " h"];
  return Number(value.toFixed(1)) + unit;
}

const hue = (id) => (parseInt(id.slice(0, 6), 16) % 360) || 0;
const colour = (id) => `hsl(${hue(id)} 60% 52%)`;
const nameOf = (id) => {
  const peer = state.peers.find((one) => one.id === id);
  return (peer && peer.name) || id.slice(0, 6);
};

// ---- numbers ---------------------------------------------------------------

function tiles() {
  const p = state.progress;
  const alive = state.peers.filter((one) => one.state !== "gone" && one.state !== "suspected");
  const swarm = alive.reduce((sum, one) => sum + one.samples_per_s, 0);
  const bytes = state.peers.reduce((sum, one) => sum + one.sent_bytes, 0);
  const values = [
    ["peers", String(alive.length)],
    ["loss here", small(p.loss)],
    ["held-out accuracy", p.evaluated ? (100 * p.evaluated.accuracy).toFixed(2) + " %" : "–"],
    ["samples/s, swarm", scaled(swarm)],
    ["distance / norm", state.consensus ? small(state.consensus.relative) : "–"],
    ["lag, commits", String(p.staleness)],
    ["blocked by bounds", ago(p.wait_s)],
    ["sent by all", scaled(bytes, "B")],
  ];
  const box = $("tiles");
  if (box.children.length !== values.length) {
    box.replaceChildren();
    for (const [label] of values) {
      const tile = element(box, "div");
      element(tile, "b");
      element(tile, "small", label);
    }
  }
  values.forEach(([, value], index) => { box.children[index].firstChild.textContent = value; });
  $("run").textContent = `${state.node.model} · ${state.node.rule} · run ${state.node.run.slice(0, 8)} · peer ${state.node.name}`;
  $("done").value = state.node.steps ? Math.min(1, p.position / state.node.steps) : 0;
  const status = $("status");
  status.className = "";
  status.textContent = `${state.state}, step ${p.position} of ${state.node.steps}, up ${ago(state.time_s)}`;
  document.title = `dnode ${state.node.name}: ${state.state}`;
}

// Event names and details come from peers as well: text only, never markup.
function events() {
  const list = $("events");
  const last = state.events.length ? state.events[state.events.length - 1].number : 0;
  if (last === newest) return;
  newest = last;
  list.replaceChildren();
  for (const event of state.events.slice().reverse()) {
    const item = element(list, "li");
    const time = new Date(1000 * (state.node.started_unix_s + event.time_s));
    element(item, "time", time.toLocaleTimeString());
    element(item, "b", event.name);
    element(item, "span", event.detail.replace(/12D3KooW\w{38}(\w{6})/g, "$1"));
  }
}

function table() {
  const body = $("peers");
  const rows = new Map(Array.from(body.children, (row) => [row.dataset.peer, row]));
  state.peers.forEach((peer, index) => {
    let row = rows.get(peer.id);
    if (!row) {
      row = element(body, "tr");
      row.dataset.peer = peer.id;
      for (let cell = 0; cell < 10; cell += 1) element(row, "td");
      row.addEventListener("click", () => pick({ peer: peer.id }));
    }
    rows.delete(peer.id);
    const values = [
      peer.name || peer.id.slice(0, 6), peer.state, peer.step, peer.commits, small(peer.loss), scaled(peer.samples_per_s),
      small(peer.distance), scaled(peer.sent_bytes, "B"), scaled(peer.received_bytes, "B"), index ? ago(peer.age_s) : "here",
    ];
    values.forEach((value, cell) => {
      const text = String(value);
      if (row.children[cell].textContent !== text) row.children[cell].textContent = text;
    });
    row.children[1].style.color = `var(--${peer.state})`;
  });
  for (const row of rows.values()) row.remove();
}

// ---- plots -----------------------------------------------------------------

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  const all = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) all.push(tick);
  return all;
}

// series: [{points: [[x, y]], colour, width}]
function plot(id, series, options) {
  const svg = $(id);
  const width = svg.clientWidth || 320;
  const height = svg.clientHeight || 176;
  svg.replaceChildren();
  const all = series.flatMap((one) => one.points).filter((p) => Number.isFinite(p[1]) && (!options.log || p[1] > 0));
  if (all.length < 2) {
    node(svg, "text", { x: 8, y: 24 }, "nothing yet");
    return;
  }
  const put = options.log ? Math.log10 : (y) => y;
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [x, y] of all) {
    x0 = Math.min(x0, x); x1 = Math.max(x1, x);
    y0 = Math.min(y0, put(y)); y1 = Math.max(y1, put(y));
  }
  if (options.zero) y0 = Math.min(0, y0);
  if (x1 === x0) x1 = x0 + 1;
  if (y1 - y0 < 1e-9) { y1 += 0.5 * Math.abs(y1) || 0.5; if (!options.zero) y0 -= 0.5; }
  const [left, right, top, bottom] = [54, 8, 6, 18];
  const sx = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const sy = (y) => top + (1 - (put(y) - y0) / (y1 - y0)) * (height - top - bottom);
  const marks = options.log
    ? (y1 - y0 >= 1.5
      ? Array.from({ length: Math.floor(y1) - Math.ceil(y0) + 1 }, (_, i) => 10 ** (Math.ceil(y0) + i))
      : ticks(10 ** y0, 10 ** y1, 4))
    : ticks(y0, y1, 4);
  const every = Math.ceil(marks.length / 6) || 1;
  for (const mark of marks.filter((_, index) => index % every === 0)) {
    const y = sy(mark);
    node(svg, "path", { class: "axis", d: `M${left} ${y}H${width - right}` });
    node(svg, "text", { x: left - 4, y: y + 4, "text-anchor": "end" }, options.unit ? scaled(mark).replace(/\.0+ | /, "") : small(Number(mark.toPrecision(6))));
  }
  for (const mark of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
    const x = Math.min(sx(mark), width - 22);
    node(svg, "text", { x, y: height - 4, "text-anchor": "middle" }, options.x(mark));
  }
  for (const one of series) {
    const path = one.points.filter((p) => Number.isFinite(p[1]) && (!options.log || p[1] > 0))
      .map(([x, y], index) => `${index ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("");
    node(svg, "path", { class: "curve", d: path, stroke: one.colour, "stroke-width": one.width || 1.3, opacity: one.opacity || 1 });
  }
  (options.names || []).forEach(([name, paint], index) => {
    node(svg, "text", { x: width - right - 4, y: 14 + 13 * index, "text-anchor": "end", style: `fill:${paint}` }, name);
  });
}

function plots() {
  const many = curves.size > 40;
  const losses = [];
  for (const [id, points] of curves) {
    losses.push({ points: smooth(points), colour: colour(id), opacity: many ? 0.45 : 0.9 });
  }
  if (picked && curves.has(picked.peer)) losses.push({ points: smooth(curves.get(picked.peer)), colour: "var(--ink)", width: 2 });
  plot("loss", losses, { log: true, x: (x) => scaled(x).trim() });
  const seconds = (x) => elapsed(Math.max(0, x));
  const [one, all] = ["var(--accent)", "var(--exchanging)"];
  plot("rate", [{ points: times.swarm, colour: all }, { points: times.rate, colour: one }],
    { zero: true, unit: true, x: seconds, names: [["swarm", all], ["this peer", one]] });
  plot("consensus", [{ points: times.consensus, colour: one }], { log: true, x: seconds, names: [["distance / norm", one]] });
  plot("bytes", [{ points: times.sent, colour: one }, { points: times.received, colour: all }],
    { zero: true, unit: true, x: seconds, names: [["sent", one], ["received", all]] });
  histogram();
}

// Losses of single batches jump: the mean of five neighbours is drawn.
function smooth(points) {
  return points.map(([x], index) => {
    const part = points.slice(Math.max(0, index - 4), index + 1);
    return [x, part.reduce((sum, p) => sum + p[1], 0) / part.length];
  });
}

function histogram() {
  const svg = $("lags");
  svg.replaceChildren();
  const counts = new Array(9).fill(0);
  for (const peer of state.peers) peer.lags.forEach((count, lag) => { counts[Math.min(lag, 8)] += count; });
  const total = counts.reduce((a, b) => a + b, 0);
  if (!total) {
    node(svg, "text", { x: 8, y: 24 }, "no exchange yet");
    return;
  }
  const [width, height] = [svg.clientWidth || 320, svg.clientHeight || 176];
  const most = Math.max(...counts);
  const step = (width - 12) / counts.length;
  counts.forEach((count, lag) => {
    const tall = (count / most) * (height - 40);
    node(svg, "rect", { class: "bar", x: 6 + lag * step + 2, y: height - 20 - tall, width: step - 4, height: tall });
    node(svg, "text", { x: 6 + (lag + 0.5) * step, y: height - 6, "text-anchor": "middle" }, lag === 8 ? "8+" : String(lag));
    if (count) node(svg, "text", { x: 6 + (lag + 0.5) * step, y: height - 24 - tall, "text-anchor": "middle" }, ((100 * count) / total).toFixed(count / total < 0.1 ? 1 : 0) + "%");
  });
  node(svg, "text", { x: width - 8, y: 12, "text-anchor": "end" }, "commits apart, all peers");
}

// ---- graph -----------------------------------------------------------------

function links() {
  const found = new Map();
  const known = new Set(state.peers.map((one) => one.id));
  for (const peer of state.peers) {
    if (peer.state === "gone") continue;
    for (const link of peer.links) {
      if (!known.has(link.to)) continue;
      const key = peer.id < link.to ? peer.id + link.to : link.to + peer.id;
      const rate = link.traffic.sent_bytes_per_s + link.traffic.received_bytes_per_s;
      const before = found.get(key);
      if (!before || link.suspected || before.rate < rate) found.set(key, { key, a: peer.id, b: link.to, rate, link });
    }
  }
  return Array.from(found.values());
}

// Peers of a rack stand together on a circle of circles; others by a few turns of repulsion and springs.
function place(edges, width, height) {
  const racks = Array.from(new Set(state.peers.map((one) => one.rack).filter(Boolean))).sort();
  state.peers.forEach((peer, index) => {
    if (places.has(peer.id)) return;
    const turn = peer.rack ? (2 * Math.PI * racks.indexOf(peer.rack)) / racks.length : 2.399963 * index;
    const far = peer.rack ? 0.32 : 0.06 + 0.36 * Math.sqrt((index + 0.5) / state.peers.length);
    const jitter = 0.03 * Math.sin(7 * index);
    places.set(peer.id, { x: 0.5 + (far + jitter) * Math.cos(turn), y: 0.5 + (far - jitter) * Math.sin(turn) });
  });
  const known = new Set(state.peers.map((one) => one.id));
  for (const id of places.keys()) if (!known.has(id)) places.delete(id);
  const all = state.peers.map((one) => places.get(one.id));
  const ideal = 0.75 / Math.sqrt(all.length);
  const turns = all.length > 150 ? 3 : 12;
  const ratio = width / height;
  for (let turn = 0; turn < turns; turn += 1) {
    const force = all.map((one) => [0.1 * (0.5 - one.x), 0.1 * (0.5 - one.y)]);
    for (let i = 0; i < all.length; i += 1) {
      for (let j = i + 1; j < all.length; j += 1) {
        const dx = (all[i].x - all[j].x) * Math.min(ratio, 2);
        const dy = all[i].y - all[j].y;
        const d2 = dx * dx + dy * dy + 1e-5;
        const push = (0.04 * ideal * ideal) / d2;
        force[i][0] += push * dx; force[i][1] += push * dy;
        force[j][0] -= push * dx; force[j][1] -= push * dy;
      }
    }
    const number = new Map(state.peers.map((one, index) => [one.id, index]));
    for (const edge of edges) {
      const [i, j] = [number.get(edge.a), number.get(edge.b)];
      const pull = 0.6 / Math.max(8, edges.length / all.length * 2);
      const [dx, dy] = [all[j].x - all[i].x, all[j].y - all[i].y];
      const distance = Math.hypot(dx, dy) + 1e-5;
      const by = pull * 0.1 * (distance - ideal) / distance;
      force[i][0] += by * dx; force[i][1] += by * dy;
      force[j][0] -= by * dx; force[j][1] -= by * dy;
    }
    if (racks.length) {
      for (const rack of racks) {
        const mates = state.peers.map((one, index) => index).filter((index) => state.peers[index].rack === rack);
        const cx = mates.reduce((sum, i) => sum + all[i].x, 0) / mates.length;
        const cy = mates.reduce((sum, i) => sum + all[i].y, 0) / mates.length;
        for (const i of mates) { force[i][0] += 0.15 * (cx - all[i].x); force[i][1] += 0.15 * (cy - all[i].y); }
      }
    }
    all.forEach((one, index) => {
      const size = Math.hypot(force[index][0], force[index][1]);
      const limit = size > 0.03 ? 0.03 / size : 1;
      one.x = Math.min(0.96, Math.max(0.04, one.x + limit * force[index][0]));
      one.y = Math.min(0.92, Math.max(0.07, one.y + limit * force[index][1]));
    });
  }
}

function graph() {
  const svg = $("graph");
  const [width, height] = [svg.clientWidth || 320, svg.clientHeight || 320];
  const edges = links();
  place(edges, width, height);
  svg.replaceChildren();
  const at = (id) => { const one = places.get(id); return [one.x * width, one.y * height]; };
  const radius = Math.max(4, Math.min(13, 0.09 * Math.min(width, height) / Math.sqrt(state.peers.length / 3)));
  const racks = new Map();
  for (const peer of state.peers) if (peer.rack) racks.set(peer.rack, (racks.get(peer.rack) || []).concat([at(peer.id)]));
  for (const [rack, points] of racks) {
    const cx = points.reduce((sum, p) => sum + p[0], 0) / points.length;
    const cy = points.reduce((sum, p) => sum + p[1], 0) / points.length;
    const r = Math.max(...points.map((p) => Math.hypot(p[0] - cx, p[1] - cy))) + radius + 10;
    node(svg, "circle", { class: "rack", cx, cy, r });
    node(svg, "text", { x: cx, y: cy - r - 3, "text-anchor": "middle" }, "rack " + rack.slice(0, 4));
  }
  for (const edge of edges) {
    const [[x1, y1], [x2, y2]] = [at(edge.a), at(edge.b)];
    const recent = edge.link.exchange_age_s !== null && edge.link.exchange_age_s < 2;
    const thick = 0.6 + Math.min(5, Math.log10(1 + edge.rate / 1000));
    const kind = "link" + (edge.link.suspected ? " suspected" : "") + (edge.link.relayed ? " relayed" : "");
    const dim = edges.length > 200 ? 0.35 : 1;
    const line = node(svg, "path", { class: kind, d: `M${x1} ${y1}L${x2} ${y2}`, "stroke-width": edges.length > 200 ? thick / 3 : thick, opacity: (recent ? 0.8 : 0.3) * dim });
    if (picked && picked.link === edge.key) line.style.cssText = "stroke:var(--ink);opacity:1";
    const hit = node(svg, "path", { class: "hit", d: `M${x1} ${y1}L${x2} ${y2}` });
    hit.addEventListener("click", () => pick({ link: edge.key }));
  }
  for (const peer of state.peers) {
    const [x, y] = at(peer.id);
    const kind = "node" + (peer.id === state.peers[0].id ? " me" : "") + (picked && picked.peer === peer.id ? " picked" : "");
    const group = node(svg, "g", { class: kind, "data-peer": peer.id, "data-state": peer.state });
    node(group, "circle", { cx: x, cy: y, r: peer.state === "gone" ? 0.6 * radius : radius, fill: `var(--${peer.state})` });
    if (state.peers.length <= 60) node(group, "text", { x, y: y + radius + 11 }, peer.name || peer.id.slice(0, 6));
    group.addEventListener("click", () => pick({ peer: peer.id }));
  }
  const legend = $("states");
  legend.replaceChildren();
  for (const name of STATES) {
    const count = state.peers.filter((one) => one.state === name).length;
    if (!count) continue;
    const item = element(legend, "span");
    element(item, "i").style.background = `var(--${name})`;
    item.append(`${name} ${count}`);
  }
  element(legend, "span", "line: thick by bytes/s, dark after an exchange, long dashes through a relay");
  const edge = picked && picked.link && edges.find((one) => one.key === picked.link);
  const peer = picked && picked.peer && state.peers.find((one) => one.id === picked.peer);
  if (edge) {
    const { link } = edge;
    $("picked").textContent = `${nameOf(edge.a)} – ${nameOf(edge.b)}: ${link.path || "path not known"}, ${link.relayed ? "through a relay" : "direct"}, ` +
      `${scaled(edge.rate, "B/s")}, round trip ${ago(link.rtt_s)}, last exchange ${link.exchange_age_s === null ? "none" : ago(link.exchange_age_s) + " ago"}`;
  } else if (peer) {
    $("picked").textContent = `${peer.name}: ${peer.state}${peer.rack ? ", rack " + peer.rack.slice(0, 4) : ""}, step ${peer.step}, ${peer.commits} commits, ` +
      `loss ${small(peer.loss)}, ${scaled(peer.samples_per_s)}samples/s, ${peer.links.length} links told, heard of ${ago(peer.age_s)} ago`;
  }
}

function pick(what) {
  picked = what;
  if (state) { graph(); plots(); }
}

// ---- the loop --------------------------------------------------------------

function remember() {
  for (const peer of state.peers) {
    if (peer.loss === null) continue;
    if (!curves.has(peer.id)) curves.set(peer.id, []);
    const curve = curves.get(peer.id);
    while (curve.length && curve[curve.length - 1][0] > peer.position) curve.pop();
    if (!curve.length || curve[curve.length - 1][0] < peer.position) curve.push([peer.position, peer.loss]);
    if (curve.length > 600) curves.set(peer.id, curve.filter((_, index) => index % 2 === 0));
  }
  const now = state.time_s;
  const living = state.peers.filter((one) => one.state !== "gone" && one.state !== "suspected");
  const add = (list, value) => {
    if (list.length && list[list.length - 1][0] >= now) return;
    list.push([now, value]);
    while (list.length > SECONDS_KEPT) list.shift();
  };
  add(times.rate, state.progress.samples_per_s);
  add(times.swarm, living.reduce((sum, one) => sum + one.samples_per_s, 0));
  if (state.consensus) add(times.consensus, state.consensus.relative);
  add(times.sent, state.traffic.sent_bytes_per_s);
  add(times.received, state.traffic.received_bytes_per_s);
}

async function ask(path) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), 5000);
  try {
    const answer = await fetch(path, { signal: abort.signal });
    if (!answer.ok) throw new Error(String(answer.status));
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

function draw() {
  tiles(); events(); table(); plots(); graph();
}

async function turn() {
  if (!document.hidden) {
    try {
      const next = await ask("api/state");
      if (next.node.peer) {
        const anew = state && next.node.incarnation !== state.node.incarnation;
        if (!state || lost > 3 || anew) await past(anew);
        state = next;
        lost = 0;
        remember();
        draw();
        document.body.dataset.live = String(state.time_s);
      }
    } catch (error) {
      lost += 1;
      if (lost > 1) {
        $("status").className = "bad";
        $("status").textContent = "this peer does not answer; trying again";
      }
    }
  }
  setTimeout(turn, 1000);
}

// The curves from before this page was opened.
async function past(anew) {
  if (anew) { curves.clear(); newest = -1; for (const list of Object.values(times)) list.length = 0; }
  const told = await ask("api/history");
  for (const id in told.curves) curves.set(id, told.curves[id]);
}

addEventListener("resize", () => { if (state) draw(); });
turn();
