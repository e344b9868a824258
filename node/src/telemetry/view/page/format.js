// Numbers for persons; figure.rs writes the same, and a test compares the two.
"use strict";

const PREFIXES = ["k", "M", "G", "T", "P", "E"];
const UNKNOWN = "–";
const LEAST = 1e-6;
const DECIMALS_MAX = 6;

function parts(value) {
  if (value === 0) return ["0", ""];
  if (value === null || value === undefined || !Number.isFinite(value)) return [UNKNOWN, ""];
  const sign = value < 0 ? "-" : "";
  let size = Math.abs(value);
  if (size < LEAST) return ["<" + LEAST.toFixed(6), ""];
  let prefix = "";
  for (const next of PREFIXES) {
    if (size < 999.5) break; // more would be shown as 1000
    size /= 1000;
    prefix = next;
  }
  if (size >= 999.5) return [">" + sign + "999", prefix];
  let decimals = 0;
  while (decimals < DECIMALS_MAX && size < 99.95 / 10 ** decimals) decimals += 1;
  return [sign + size.toFixed(decimals), prefix];
}

// Three digits, at most six decimals: 0.00424, 12.3, 123, 1.23k.
function figure(value) {
  return parts(value).join("");
}

// The same with a unit: 1.23 MB.
function measure(value, unit) {
  const [number, prefix] = parts(value);
  return number === UNKNOWN ? UNKNOWN : number + " " + prefix + unit;
}

// A whole number: all of its digits below a thousand.
function count(value) {
  return Math.abs(value) < 999.5 ? value.toFixed(0) : figure(value);
}

function percent(share) {
  if (share === null || share === undefined) return UNKNOWN;
  return share === 0 ? "0 %" : figure(100 * share) + " %";
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 0.9995) return (1000 * seconds).toFixed(0) + " ms";
  if (seconds < 90) return seconds.toFixed(seconds < 9.95 ? 1 : 0) + " s";
  return seconds < 5400 ? (seconds / 60).toFixed(0) + " min" : (seconds / 3600).toFixed(1) + " h";
}

// ---- axes ------------------------------------------------------------------

// Round numbers from `low` to `high`, at most `most` of them.
function ticks(low, high, most) {
  if (!(high > low) || most < 1) return [];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
}

// Round numbers of a logarithmic axis: 1, 2 and 5 of each decade, or as on a linear one where it is short.
function logTicks(least, high, most) {
  const low = Math.max(least, LEAST);
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const times of [1, 2, 5]) all.push(times * 10 ** power);
  }
  const inside = all.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  if (inside.length < 3) return ticks(low, high, most);
  const decades = inside.filter((tick) => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9);
  const chosen = inside.length <= most || decades.length < 2 ? inside : decades;
  const every = Math.ceil(chosen.length / most);
  return chosen.filter((_, index) => index % every === 0);
}

// One label for each tick, all with one prefix, and as many decimals as it takes to tell them apart.
function tickLabels(list) {
  if (!list.length) return [];
  const most = Math.max(...list.map(Math.abs));
  const least = Math.min(...list.filter((tick) => tick !== 0).map(Math.abs));
  let unit = 1;
  let prefix = "";
  for (const next of PREFIXES) {
    if (most / unit < (unit === 1 ? 10000 : 1000)) break;
    unit *= 1000;
    prefix = next;
  }
  // A logarithmic axis spans many prefixes: each tick has its own.
  if (most / least > 1000 && list.every((tick) => tick > 0)) return list.map((tick) => figure(tick).replace(/(\.\d*?)0+(?=\D*$)/, "$1").replace(/\.(?=\D*$)/, ""));
  for (let decimals = 0; decimals <= 12; decimals += 1) {
    const labels = list.map((tick) => (tick === 0 ? "0" : (tick / unit).toFixed(decimals) + prefix));
    const exact = list.every((tick) => Math.abs(Number((tick / unit).toFixed(decimals)) - tick / unit) <= 1e-6 * (most / unit) / list.length);
    if (exact && new Set(labels).size === list.length) return labels;
  }
  return list.map((tick) => String(tick));
}

const SECOND_STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

function timeTicks(low, high, most) {
  const rough = (high - low) / most;
  const step = SECOND_STEPS.find((one) => one >= rough) || 86400 * Math.ceil(rough / 86400);
  const all = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) all.push(tick);
  return all;
}

// Labels of times that are all multiples of one step: one unit for all of them.
function timeLabels(list) {
  const step = list.length > 1 ? list[1] - list[0] : list[0] || 1;
  const [unit, name] = step % 3600 === 0 ? [3600, " h"] : step % 60 === 0 ? [60, " min"] : [1, " s"];
  return list.map((tick) => (tick === 0 ? "0" : tick / unit + name));
}
