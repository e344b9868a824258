// Peers and their links as a picture.
"use strict";

const places = new Map(); // peer -> {x, y}

function links(state) {
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
function place(state, edges, ratio) {
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
  const number = new Map(state.peers.map((one, index) => [one.id, index]));
  for (let turn = 0; turn < (all.length > 150 ? 3 : 12); turn += 1) step(state, edges, { all, racks, number, ratio });
}

function step(state, edges, { all, racks, number, ratio }) {
  const ideal = 0.75 / Math.sqrt(all.length);
  const force = all.map((one) => [0.1 * (0.5 - one.x), 0.1 * (0.5 - one.y)]);
  for (let i = 0; i < all.length; i += 1) {
    for (let j = i + 1; j < all.length; j += 1) {
      const dx = (all[i].x - all[j].x) * Math.min(ratio, 2);
      const dy = all[i].y - all[j].y;
      const push = (0.04 * ideal * ideal) / (dx * dx + dy * dy + 1e-5);
      force[i][0] += push * dx; force[i][1] += push * dy;
      force[j][0] -= push * dx; force[j][1] -= push * dy;
    }
  }
  for (const edge of edges) {
    const [i, j] = [number.get(edge.a), number.get(edge.b)];
    const pull = 0.6 / Math.max(8, (edges.length / all.length) * 2);
    const [dx, dy] = [all[j].x - all[i].x, all[j].y - all[i].y];
    const distance = Math.hypot(dx, dy) + 1e-5;
    const by = (pull * 0.1 * (distance - ideal)) / distance;
    force[i][0] += by * dx; force[i][1] += by * dy;
    force[j][0] -= by * dx; force[j][1] -= by * dy;
  }
  for (const rack of racks) {
    const mates = state.peers.map((one, index) => index).filter((index) => state.peers[index].rack === rack);
    const cx = mates.reduce((sum, i) => sum + all[i].x, 0) / mates.length;
    const cy = mates.reduce((sum, i) => sum + all[i].y, 0) / mates.length;
    for (const i of mates) { force[i][0] += 0.15 * (cx - all[i].x); force[i][1] += 0.15 * (cy - all[i].y); }
  }
  all.forEach((one, index) => {
    const size = Math.hypot(force[index][0], force[index][1]);
    const limit = size > 0.03 ? 0.03 / size : 1;
    one.x = Math.min(0.93, Math.max(0.07, one.x + limit * force[index][0]));
    one.y = Math.min(0.88, Math.max(0.08, one.y + limit * force[index][1]));
  });
}

// Draws it; `picked` is {peer} or {link}, `pick` is called with such a thing.
function graph(state, picked, pick) {
  const svg = document.getElementById("graph");
  const edges = links(state);
  document.getElementById("pair").className = state.peers.length > 12 ? "pair many" : "pair";
  svg.setAttribute("class", state.peers.length > 12 ? "many" : "");
  const [width, height] = [svg.clientWidth || 320, svg.clientHeight || 176];
  place(state, edges, width / height);
  svg.replaceChildren();
  const at = (id) => { const one = places.get(id); return [one.x * width, one.y * height]; };
  const radius = Math.max(5, Math.min(10, (0.14 * Math.min(width, height)) / Math.sqrt(state.peers.length)));
  racks(svg, state, at, radius);
  for (const edge of edges) {
    const [[x1, y1], [x2, y2]] = [at(edge.a), at(edge.b)];
    const recent = edge.link.exchange_age_s !== null && edge.link.exchange_age_s < 2;
    const many = edges.length > 60;
    const thick = (0.6 + Math.min(5, Math.log10(1 + edge.rate / 1000))) / (many ? 3 : 1);
    const kind = "link" + (edge.link.suspected ? " suspected" : "") + (edge.link.relayed ? " relayed" : "");
    const line = node(svg, "path", { class: kind, d: `M${x1} ${y1}L${x2} ${y2}`, "stroke-width": thick, opacity: (recent ? 0.8 : 0.3) * (many ? 0.35 : 1) });
    if (picked && picked.link === edge.key) line.style.cssText = "stroke:var(--ink);opacity:1";
    const hit = node(svg, "path", { class: "hit", d: `M${x1} ${y1}L${x2} ${y2}` });
    hit.addEventListener("click", () => pick({ link: edge.key }));
  }
  state.peers.forEach((peer, index) => {
    const [x, y] = at(peer.id);
    const kind = "node" + (index === 0 ? " me" : "") + (picked && picked.peer === peer.id ? " picked" : "");
    const group = node(svg, "g", { class: `${kind} ${peer.state}`, "data-peer": peer.id, "data-state": peer.state });
    node(group, "circle", { cx: x, cy: y, r: peer.state === "gone" ? 0.6 * radius : radius, style: `fill:${colour(peer.color)}`, "stroke-dasharray": dash(peer.color) ? "3 2" : "" });
    if (state.peers.length <= 40) node(group, "text", { x, y: y + radius + 11 }, peer.label);
    group.addEventListener("click", () => pick({ peer: peer.id }));
  });
  svg.setAttribute("aria-label", `${state.peers.length} peers and ${edges.length} links; arrow keys choose one`);
  return edges;
}

function racks(svg, state, at, radius) {
  const found = new Map();
  for (const peer of state.peers) if (peer.rack) found.set(peer.rack, (found.get(peer.rack) || []).concat([at(peer.id)]));
  for (const [rack, points] of found) {
    const cx = points.reduce((sum, p) => sum + p[0], 0) / points.length;
    const cy = points.reduce((sum, p) => sum + p[1], 0) / points.length;
    const r = Math.max(...points.map((p) => Math.hypot(p[0] - cx, p[1] - cy))) + radius + 10;
    node(svg, "circle", { class: "rack", cx, cy, r });
    node(svg, "text", { x: cx, y: Math.max(10, cy - r - 3), "text-anchor": "middle" }, "rack " + rack.slice(0, 4));
  }
}
