// Shows what /api/state and /api/history say. Nothing is loaded from anywhere else.
// Names, hosts, notes and events come from peers as well: text only, never markup.
"use strict";

const STATES = ["training", "exchanging", "joining", "finished", "suspected", "gone"];
const SLOWEST_HISTORY_S = 15;
const $ = (id) => document.getElementById(id);
const hidden = new Set(); // peers whose curves are switched off
let state = null;
let past = { peer_columns: [], swarm_columns: [], peers: {}, swarm: [] };
let asked = -Infinity;
let picked = null;
let newest = -1;
let lost = 0;

const CHARTS = [
  ["loss", { title: "Training loss, nats", column: "loss", x: "steps", log: true, smooth: true }],
  ["held", { title: "Loss on held-out data, nats", column: "held_out", x: "steps", log: true }],
  ["rate", { title: "Samples/s", column: "samples_per_s", x: "time", zero: true, smooth: true }],
  ["bytes", { title: "Bytes/s, sent and received", columns: ["sent_bytes_per_s", "received_bytes_per_s"], x: "time", zero: true, smooth: true }],
  ["waiting", { title: "Waiting for others (staleness bound, other ranks), share of the time", column: "waiting", x: "time", zero: true, percent: true }],
  ["distance", { title: "Distance from the mean of all, L2 norm", column: "distance", x: "time", zero: true }],
  ["consensus", { title: "Consensus distance over the norm of the mean", swarm: "distance_ratio", x: "time", log: true }],
  ["lag", { title: "Lag of this peer's neighbours, commits", swarm: "staleness", x: "time", zero: true }],
];

const peerOf = (id) => state.peers.find((one) => one.id === id);
const labelOf = (id) => (peerOf(id) || {}).label || id.slice(0, 6);
const isLiving = (peer) => peer.state !== "gone" && peer.state !== "suspected";
// This peer, then the others by name.
const listed = () => state.peers.slice(0, 1).concat(state.peers.slice(1).sort((a, b) => a.label.localeCompare(b.label) || (a.id < b.id ? -1 : 1)));

// ---- numbers ---------------------------------------------------------------

function tiles() {
  const p = state.progress;
  const alive = state.peers.filter(isLiving);
  const held = p.evaluated || {};
  const values = [
    ["peers", String(alive.length)],
    ["loss here", figure(p.loss)],
    ["held-out loss here", figure(held.loss)],
    ["held-out accuracy", percent(held.accuracy)],
    ["samples/s, swarm", figure(alive.reduce((sum, one) => sum + one.samples_per_s, 0))],
    ["learning rate", figure(p.learning_rate)],
    ["distance / norm", state.consensus ? figure(state.consensus.relative) : UNKNOWN],
    ["lag, commits", count(p.staleness)],
    ["waited for others", span(p.wait_s)],
    ["blocks not read", `${count(state.exchanges.offer_blocks_unread)} of ${count(state.exchanges.offer_blocks)}`],
    ["sent by all", measure(state.peers.reduce((sum, one) => sum + one.sent_bytes, 0), "B")],
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
  const { node: of } = state;
  $("run").textContent = `${of.name} ${of.short} · ${of.model} · ${of.rule} · run ${of.run.slice(0, 8)}`;
  $("done").value = of.steps ? Math.min(1, p.position / of.steps) : 0;
  const status = $("status");
  status.className = "";
  status.textContent = `${state.state}, step ${p.position} of ${of.steps}, up ${span(state.time_s)}`;
  document.title = `dnode ${of.name}: ${state.state}`;
}

function events() {
  const list = $("events");
  const last = state.events.length ? state.events[state.events.length - 1].number : 0;
  if (last === newest) return;
  newest = last;
  list.replaceChildren();
  const label = (_, short) => (state.peers.find((one) => one.short === short) || { label: short }).label;
  for (const event of state.events.slice().reverse()) {
    const item = element(list, "li");
    const time = new Date(1000 * (state.node.started_unix_s + event.time_s));
    element(item, "time", time.toLocaleTimeString());
    element(item, "b", event.name);
    element(item, "span", event.detail.replace(/12D3KooW\w{38}(\w{6})/g, label));
  }
}

// ---- the table of peers ----------------------------------------------------

const COLUMNS = [
  ["state", (p) => p.state], ["step", (p) => String(p.position)], ["loss", (p) => figure(p.loss)],
  ["held-out", (p) => figure(p.held_out)], ["samples/s", (p) => figure(p.samples_per_s)], ["distance", (p) => figure(p.distance)],
  ["waited", (p) => span(p.wait_s)], ["commits", (p) => String(p.commits)], ["sent", (p) => measure(p.sent_bytes, "B")],
  ["received", (p) => measure(p.received_bytes, "B")], ["memory", (p) => (p.memory_bytes ? measure(p.memory_bytes, "B") : UNKNOWN)],
  ["host", (p) => p.host || UNKNOWN], ["device", (p) => p.device || UNKNOWN], ["heard", (p) => (p.id === state.peers[0].id ? "here" : span(p.age_s))],
];

function head() {
  const row = $("columns");
  element(row, "th", "peer").scope = "col";
  for (const [name] of COLUMNS) element(row, "th", name).scope = "col";
}

function newRow(peer) {
  const row = document.createElement("tr");
  row.dataset.peer = peer.id;
  const first = element(row, "th");
  first.scope = "row";
  const button = element(first, "button");
  button.type = "button";
  swatch(button, peer.color);
  element(button, "span", "", "name");
  element(button, "span", "", "id");
  for (const _ of COLUMNS) element(row, "td");
  element(row.children[1], "span");
  element(row.children[1], "span", "", "notes");
  row.addEventListener("click", () => pick({ peer: peer.id }));
  button.addEventListener("keydown", (event) => {
    const to = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (!to) return;
    to.querySelector("button").focus();
    event.preventDefault();
  });
  return row;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function table() {
  const body = $("peers");
  const rows = new Map(Array.from(body.children, (row) => [row.dataset.peer, row]));
  listed().forEach((peer, index) => {
    const row = rows.get(peer.id) || newRow(peer);
    rows.delete(peer.id);
    // Moved only when it stands elsewhere: a row that moves loses the keyboard.
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null);
    const button = row.querySelector("button");
    put(button.children[1], peer.name || peer.short);
    put(button.children[2], peer.name ? peer.short : "");
    button.setAttribute("aria-pressed", String(Boolean(picked && picked.peer === peer.id)));
    row.className = picked && picked.peer === peer.id ? "picked" : "";
    COLUMNS.forEach(([, value], cell) => put(cell ? row.children[cell + 1] : row.children[1].firstChild, value(peer)));
    row.children[1].firstChild.style.color = `var(--${peer.state})`;
    badges(row.children[1].lastChild, peer.notes || []);
  });
  for (const row of rows.values()) row.remove();
}

// A few words each about a peer.
function badges(box, notes) {
  if (box.textContent === notes.join("")) return;
  box.replaceChildren();
  for (const note of notes) element(box, "span", note, "badge");
}

function legend() {
  const box = $("legend");
  const chips = new Map(Array.from(box.children, (chip) => [chip.dataset.peer, chip]));
  listed().forEach((peer, index) => {
    let chip = chips.get(peer.id);
    if (!chip) {
      chip = document.createElement("button");
      chip.type = "button";
      chip.dataset.peer = peer.id;
      swatch(chip, peer.color);
      element(chip, "span");
      chip.addEventListener("click", () => {
        if (!hidden.delete(peer.id)) hidden.add(peer.id);
        legend();
        plots();
      });
    }
    chips.delete(peer.id);
    if (box.children[index] !== chip) box.insertBefore(chip, box.children[index] || null);
    put(chip.lastChild, peer.label);
    chip.setAttribute("aria-pressed", String(!hidden.has(peer.id)));
  });
  for (const chip of chips.values()) chip.remove();
}

// ---- plots -----------------------------------------------------------------

function plots() {
  const at = (name) => past.peer_columns.indexOf(name);
  const shown = listed().filter((peer) => past.peers[peer.id] && !hidden.has(peer.id));
  const isPicked = picked && shown.some((peer) => peer.id === picked.peer);
  for (const [id, options] of CHARTS) {
    if (options.swarm) {
      const column = past.swarm_columns.indexOf(options.swarm);
      const points = past.swarm.map((row) => [row[0], row[column]]);
      plot(id, [{ name: "here", points: known(points), colour: "var(--ink)" }], options);
      continue;
    }
    const x = at(options.x === "time" ? "time_s" : "position");
    const columns = (options.columns || [options.column]).map(at);
    const series = shown.map((peer) => {
      const value = (row) => columns.reduce((sum, column) => (row[column] === null ? null : sum + row[column]), 0);
      const points = known(past.peers[peer.id].map((row) => [row[x], value(row)]));
      const strong = isPicked && picked.peer === peer.id;
      return {
        name: peer.label, points: options.smooth ? smooth(points) : points, colour: colour(peer.color), dash: dash(peer.color),
        strong, faint: isPicked && !strong,
      };
    });
    plot(id, series, options);
  }
  const counts = new Array(9).fill(0);
  for (const peer of state.peers) peer.lags.forEach((each, lag) => { counts[Math.min(lag, 8)] += each; });
  histogram("lags", counts);
}

const known = (points) => points.filter(([x, y]) => x !== null && y !== null);

// Losses of single batches and rates of single seconds jump: the mean of five neighbours is drawn.
function smooth(points) {
  return points.map(([x], index) => {
    const part = points.slice(Math.max(0, index - 4), index + 1);
    return [x, part.reduce((sum, p) => sum + p[1], 0) / part.length];
  });
}

// ---- the graph -------------------------------------------------------------

function swarm() {
  const edges = graph(state, picked, pick);
  const box = $("states");
  box.replaceChildren();
  for (const name of STATES) {
    const of = state.peers.filter((one) => one.state === name).length;
    if (of) element(box, "span", `${name} ${of}`).style.color = `var(--${name})`;
  }
  const edge = picked && picked.link && edges.find((one) => one.key === picked.link);
  const peer = picked && picked.peer && peerOf(picked.peer);
  let text = "Choose a peer or a link. Lines: thick by bytes/s, dark after an exchange, long dashes through a relay.";
  if (edge) {
    const { link } = edge;
    text = `${labelOf(edge.a)} – ${labelOf(edge.b)}: ${link.path || "path not known"}, ${link.relayed ? "through a relay" : "direct"}, ` +
      `${measure(edge.rate, "B/s")}, round trip ${span(link.rtt_s)}, last exchange ${link.exchange_age_s === null ? "none" : span(link.exchange_age_s) + " ago"}`;
  } else if (peer) {
    text = `${peer.label}${peer.name ? " (" + peer.short + ")" : ""}: ${[peer.state].concat(peer.notes || []).join(", ")}` +
      `${peer.rack ? ", rack " + peer.rack.slice(0, 4) : ""}, step ${peer.position}, ${peer.commits} commits, loss ${figure(peer.loss)}, ` +
      `${figure(peer.samples_per_s)} samples/s, ${peer.links.length} links told, heard of ${span(peer.age_s)} ago`;
  }
  put($("picked"), text);
  return edges;
}

// Arrow keys go from peer to peer, then from link to link.
function walk(event) {
  const jump = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!state || (!jump && event.key !== "Escape")) return;
  event.preventDefault();
  if (!jump) return pick(null);
  const all = listed().map((peer) => ({ peer: peer.id })).concat(links(state).map((edge) => ({ link: edge.key })));
  const is = (one) => picked && (picked.peer ? one.peer === picked.peer : one.link === picked.link);
  const at = all.findIndex(is);
  pick(all[(at + jump + all.length) % all.length] || all[0]);
}

function pick(what) {
  picked = what;
  if (state) { table(); swarm(); plots(); }
}

// ---- the loop --------------------------------------------------------------

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
  tiles(); table(); legend(); plots(); swarm(); events();
}

async function turn() {
  if (!document.hidden) {
    try {
      const next = await ask("api/state");
      if (next.node.peer) {
        if (state && ["peer", "incarnation", "started_unix_s"].some((key) => next.node[key] !== state.node[key])) {
          newest = -1; asked = -Infinity; picked = null; hidden.clear();
        }
        // The whole history, less often where it is long.
        if (next.time_s - asked >= Math.min(SLOWEST_HISTORY_S, next.peers.length / 3)) {
          past = await ask("api/history");
          asked = next.time_s;
        }
        state = next;
        lost = 0;
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

head();
for (const [id, options] of CHARTS) addChart($("charts"), id, options);
$("graph").addEventListener("keydown", walk);
addEventListener("resize", () => { if (state) draw(); });
turn();
