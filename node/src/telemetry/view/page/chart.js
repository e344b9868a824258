// Curves over the run or over time: drawn anew with what is known, readable by mouse and by keyboard.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
// As many as a reader tells apart, also without red and green (Okabe and Ito); further peers get them
// again with another dash.
const COLOURS = 7;
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "14 5"];
const colour = (index) => `var(--p${index % COLOURS})`;
const dash = (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length];
const cursors = new Map(); // chart -> x of the line that is read
const drawn = new Map(); // chart -> what was drawn last

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

// The line by which a peer's curves are known.
function swatch(parent, index) {
  const svg = node(parent, "svg", { class: "swatch", viewBox: "0 0 22 8", "aria-hidden": "true" });
  node(svg, "path", { d: "M0 4H22", style: `stroke:${colour(index)}`, "stroke-dasharray": dash(index) });
  return svg;
}

// A section with a chart; `options`: {title, value, x: "steps" or "time", log, zero}.
function addChart(parent, id, options) {
  const section = element(parent, "section");
  element(section, "h2", options.title);
  const svg = node(section, "svg", { class: "plot", id, role: "img", tabindex: 0 });
  const readout = element(section, "p", "", "readout");
  readout.id = id + "-at";
  readout.setAttribute("role", "status");
  svg.addEventListener("keydown", (event) => {
    const last = drawn.get(id);
    if (!last) return;
    const xs = last.xs;
    const at = cursors.has(id) ? nearest(xs, cursors.get(id)) : xs.length;
    const jump = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -xs.length, End: xs.length }[event.key];
    if (event.key === "Escape") read(id, null);
    else if (jump) read(id, xs[Math.min(xs.length - 1, Math.max(0, at + jump))]);
    else return;
    event.preventDefault();
  });
  svg.addEventListener("blur", () => read(id, null));
  svg.addEventListener("pointermove", (event) => {
    const last = drawn.get(id);
    if (!last) return;
    const x = last.back(event.clientX - svg.getBoundingClientRect().left);
    read(id, last.xs[nearest(last.xs, x)]);
  });
  svg.addEventListener("pointerleave", () => read(id, null));
}

function nearest(xs, x) {
  let best = 0;
  xs.forEach((one, index) => { if (Math.abs(one - x) < Math.abs(xs[best] - x)) best = index; });
  return best;
}

function read(id, x) {
  if (x === null) cursors.delete(id); else cursors.set(id, x);
  const last = drawn.get(id);
  if (last) plot(id, last.series, last.options);
}

function usable(points, log) {
  const finite = points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  // What is too small to be written out is drawn where that begins.
  return log ? finite.map(([x, y]) => [x, Math.max(y, LEAST)]) : finite;
}

// series: [{name, points: [[x, y]], colour, dash, strong, faint}]
function plot(id, series, options) {
  const svg = document.getElementById(id);
  const [width, height] = [svg.clientWidth || 320, svg.clientHeight || 176];
  svg.replaceChildren();
  const kept = series.map((one) => ({ ...one, points: usable(one.points, options.log) })).filter((one) => one.points.length);
  if (!kept.length) {
    drawn.delete(id);
    node(svg, "text", { x: 8, y: 24 }, "nothing yet");
    svg.setAttribute("aria-label", `${options.title}: nothing yet`);
    document.getElementById(id + "-at").textContent = "";
    return;
  }
  const put = options.log ? Math.log10 : (y) => y;
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { points } of kept) {
    for (const [x, y] of points) {
      x0 = Math.min(x0, x); x1 = Math.max(x1, x);
      y0 = Math.min(y0, y); y1 = Math.max(y1, y);
    }
  }
  if (options.zero) y0 = Math.min(0, y0);
  if (x1 === x0) x1 = x0 + 1;
  if (y1 - y0 <= 1e-6 * Math.abs(y1)) [y0, y1] = [options.zero || options.log ? y0 * 0.9 : y0 - 0.5, y1 === 0 ? 1 : y1 * 1.1];
  const yTicks = (options.log ? logTicks : ticks)(y0, y1, Math.max(3, Math.floor(height / 30)));
  const yLabels = options.percent ? tickLabels(yTicks.map((tick) => 100 * tick)).map((label) => label + " %") : tickLabels(yTicks);
  const left = 12 + 6.6 * Math.max(3, ...yLabels.map((label) => label.length));
  const [right, top, bottom] = [14, 8, 20];
  const sx = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const sy = (y) => top + (1 - (put(y) - put(y0)) / (put(y1) - put(y0))) * (height - top - bottom);
  yTicks.forEach((mark, index) => {
    const y = sy(mark);
    node(svg, "path", { class: "axis", d: `M${left} ${y}H${width - right}` });
    node(svg, "text", { class: "y", x: left - 5, y: y + 4, "text-anchor": "end" }, yLabels[index]);
  });
  const time = options.x === "time";
  const xTicks = (time ? timeTicks : ticks)(x0, x1, Math.max(2, Math.floor((width - left) / 60)));
  const xLabels = (time ? timeLabels : tickLabels)(xTicks);
  xTicks.forEach((mark, index) => {
    const x = sx(mark);
    const half = 3.4 * xLabels[index].length;
    node(svg, "path", { class: "axis", d: `M${x} ${height - bottom}v4` });
    node(svg, "text", { class: "x", x: Math.min(x, width - half), y: height - 4, "text-anchor": "middle" }, xLabels[index]);
  });
  for (const one of kept) {
    const path = one.points.map(([x, y], index) => `${index ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("");
    const [x, y] = one.points[one.points.length - 1];
    const look = { style: `stroke:${one.colour}`, "stroke-width": one.strong ? 3 : 1.8, opacity: one.faint ? 0.35 : 1 };
    node(svg, "path", { class: "curve", d: path, "stroke-dasharray": one.dash || "", "data-points": one.points.length, "data-name": one.name, ...look });
    if (one.points.length === 1) node(svg, "circle", { cx: sx(x), cy: sy(y), r: 2.5, style: `fill:${one.colour}` });
  }
  const xs = Array.from(new Set(kept.flatMap((one) => one.points.map(([x]) => x)))).sort((a, b) => a - b);
  drawn.set(id, { series, options, xs, back: (x) => x0 + ((x - left) / (width - left - right)) * (x1 - x0) });
  const cursor = cursors.has(id) ? cursors.get(id) : null;
  if (cursor !== null) node(svg, "path", { class: "cursor", d: `M${sx(cursor)} ${top}V${height - bottom}` });
  const where = (x) => (time ? "after " + span(x) : "step " + count(x));
  svg.setAttribute("aria-label", `${options.title}, ${where(x0)} to ${where(x1)}; now ${values(kept, Infinity, options, 12)}`);
  document.getElementById(id + "-at").textContent = cursor === null ? "" : `${where(cursor)}: ${values(kept, cursor, options, 4)}`;
}

// What the curves say at `x`: each of few, the range of many.
function values(series, x, options, few) {
  const show = options.percent ? percent : (y) => figure(y);
  const all = series.map((one) => {
    const { points } = one;
    const y = x === Infinity ? points[points.length - 1][1] : points[nearest(points.map((point) => point[0]), x)][1];
    return [y, one.name];
  });
  if (all.length <= few) return all.map(([y, name]) => `${name} ${show(y)}`).join(", ");
  all.sort((a, b) => a[0] - b[0]);
  const [least, most] = [all[0], all[all.length - 1]];
  return `${show(least[0])} (${least[1]}) to ${show(most[0])} (${most[1]}), median ${show(all[all.length >> 1][0])}`;
}

function histogram(id, counts) {
  const svg = document.getElementById(id);
  svg.replaceChildren();
  const total = counts.reduce((a, b) => a + b, 0);
  if (!total) {
    node(svg, "text", { x: 8, y: 24 }, "no exchange yet");
    svg.setAttribute("aria-label", "commits apart: no exchange yet");
    return;
  }
  const [width, height] = [svg.clientWidth || 320, svg.clientHeight || 176];
  const most = Math.max(...counts);
  const step = (width - 12) / counts.length;
  const told = [];
  counts.forEach((each, lag) => {
    const tall = (each / most) * (height - 40);
    const name = lag === counts.length - 1 ? `${lag}+` : String(lag);
    const share = each && each / total < 0.01 ? "<1 %" : Math.round((100 * each) / total) + " %";
    node(svg, "rect", { class: "bar", x: 6 + lag * step + 2, y: height - 20 - tall, width: step - 4, height: tall });
    node(svg, "text", { x: 6 + (lag + 0.5) * step, y: height - 6, "text-anchor": "middle" }, name);
    if (each) node(svg, "text", { x: 6 + (lag + 0.5) * step, y: height - 24 - tall, "text-anchor": "middle" }, share);
    if (each) told.push(`${name}: ${share}`);
  });
  svg.setAttribute("aria-label", `exchanges of all peers by commits apart: ${told.join(", ")}`);
}
