"use strict";
// Line charts over training steps, drawn by uPlot in the page's colours. All charts share the step under the cursor and
// the zoomed range; each can be read by keyboard, and as a table.

const HEIGHT = 220;
const PRINTED_WIDTH = 310; // of half a sheet of A4, in CSS pixels
const TABLE_ROWS = 100; // at most, evenly spaced over the steps
const all = [];

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A part of the page that scrolls by itself, with the keyboard too.
const scrolled = (label, ...children) => element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLORS = 8; // of runs; those beyond are dashed
const seriesColor = (index) => color(`--series-${index % COLORS}`);

function text(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return String(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : value.toPrecision(4);
}

// A number on an axis: no more digits than it needs.
function label(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential().replace("+", "") : String(Number(value.toPrecision(6)));
}

// The powers of `base` in a range, at most eight.
function powers(base, low, high) {
  const [from, to] = [low, high].map((value) => Math.log(value) / Math.log(base));
  const first = Math.ceil(from - 1e-9), count = Math.floor(to + 1e-9) - first + 1, every = Math.ceil(count / 8);
  return Array.from({ length: Math.max(0, Math.ceil(count / every)) }, (_, i) => base ** (first + i * every));
}

// An average that forgets: each value counts `keep` times as much as the next one. Corrected for its start at zero.
function smoothed(values, keep) {
  let sum = 0, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return sum / weight;
  });
}

// series: [{name, run, x, y, kind}], kind "line", "step" (piecewise constant), "points" (joined by a dashed line) or
// "marks" (alone). log: the base of a logarithmic axis that can be switched, 0 for none. smooth: whether lines are.
// note: what a newcomer should know about it.
class Chart {
  constructor(parent, { title, unit = "", series, log = 0, startLog = false, smooth = false, note = "" }) {
    Object.assign(this, { title, unit, series, log, smooth, isLog: Boolean(log) && startLog, runs: null, keep: 0 });
    this.plot = element("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart" });
    this.values = element("p", { class: "values" });
    const about = note ? [element("p", { class: "hint" }, note)] : [];
    this.figure = element("figure", {}, this._caption(), this.plot, this.values, ...about, this._table());
    this.plot.setAttribute("aria-label", this._summary());
    this.plot.addEventListener("keydown", (event) => this._key(event));
    parent.append(this.figure);
    all.push(this);
    new ResizeObserver(() => this._resize()).observe(this.plot);
  }

  _caption() {
    const caption = element("figcaption", {}, element("h3", {}, this.unit ? `${this.title}, ${this.unit}` : this.title));
    if (this.log) {
      const box = element("input", { type: "checkbox" });
      box.checked = this.isLog;
      box.addEventListener("change", () => { this.isLog = box.checked; this.draw(); });
      caption.append(element("label", {}, box, " log"));
    }
    return caption;
  }

  _summary() {
    const parts = this.series.filter((one) => one.kind !== "marks").map((one) => {
      const known = one.y.filter((value) => value !== null);
      if (!known.length) return `${one.name}: no values`;
      const [low, high] = known.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
      return `${one.name}: from ${text(known[0])} to ${text(known[known.length - 1])}, between ${text(low)} and ${text(high)}`;
    });
    return `${this.title} over steps. ${parts.join(". ")}. Arrow keys read values.`;
  }

  _table() {
    const body = scrolled(`${this.title}, table`);
    const details = element("details", {}, element("summary", {}, "Table"), body);
    details.addEventListener("toggle", () => { if (details.open && !body.firstChild) body.append(this._rows()); });
    return details;
  }

  _rows() {
    const [x, ...columns] = this._data(), every = Math.ceil(x.length / TABLE_ROWS);
    const head = element("tr", {}, ...["step", ...this.shown.map((one) => one.name)].map((name) => element("th", { scope: "col" }, name)));
    const rows = x.map((step, i) => [step, i]).filter(([, i]) => i % every === 0 || i === x.length - 1);
    const cells = ([step, i]) => [step, ...columns.map((column) => text(column[i]))].map((cell) => element("td", {}, String(cell)));
    return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row)))));
  }

  // What is drawn: the series of the runs that are switched on; a smoothed line is drawn over its values.
  _data() {
    const visible = this.series.filter((one) => !this.runs || this.runs.has(one.run));
    this.shown = visible.flatMap((one) => {
      if (!this.smooth || one.kind !== "line" || this.keep === 0) return [one];
      return [{ ...one, faint: true }, { ...one, y: smoothed(one.y, this.keep), name: `${one.name}, smoothed` }];
    });
    const positive = (y) => (this.isLog ? y.map((value) => (value > 0 ? value : null)) : y);
    return this.shown.length ? uPlot.join(this.shown.map((one) => [one.x, positive(one.y)])) : [[]];
  }

  draw() {
    const data = this._data();
    this.figure.dataset.marks = data.slice(1).reduce((sum, y) => sum + y.filter((value) => value != null).length, 0);
    this.drawn?.destroy();
    this.drawn = new uPlot(this._options(), data, this.plot);
  }

  _options() {
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const y = this.isLog ? { distr: 3, log: this.log } : {};
    const splits = this.isLog ? { splits: (chart, index, low, high) => powers(this.log, low, high), filter: (chart, at) => at } : {};
    return {
      width: Chart.printing ? PRINTED_WIDTH : Math.max(this.plot.clientWidth, 200),
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "step", setSeries: false }, points: { size: 7 } },
      scales: { x: { time: false }, y },
      axes: [{ ...axis, size: 30 }, { ...axis, ...splits, size: 64, values: (chart, at) => at.map(label) }],
      series: [{}, ...this.shown.map((one) => this._series(one))],
      hooks: { setCursor: [() => this._read()], setScale: [(chart, key) => this._zoomed(chart, key)] },
    };
  }

  _series(one) {
    const stroke = seriesColor(one.run);
    const points = { show: false, size: 7, stroke, fill: stroke };
    if (one.kind === "marks") return { stroke, paths: () => null, points: { ...points, show: true } };
    if (one.kind === "points") return { stroke, width: 1, dash: [4, 4], spanGaps: true, points: { ...points, show: true } };
    const paths = one.kind === "step" ? uPlot.paths.stepped({ align: 1 }) : undefined;
    const dash = one.run < COLORS ? undefined : [7, 4];
    return { dash, stroke: one.faint ? `${stroke}55` : stroke, width: one.faint ? 1 : 1.7, spanGaps: true, paths, points: { ...points, show: one.x.length === 1 } };
  }

  // The values under the cursor: of each series the last one up to that step.
  _read() {
    const at = this.drawn?.cursor.idx;
    if (at === null || at === undefined) { this.values.textContent = ""; return; }
    const [x, ...columns] = this.drawn.data;
    const latest = (column) => { for (let i = at; i >= 0; i--) if (column[i] != null) return column[i]; return null; };
    const parts = this.shown.map((one, i) => (one.faint || one.kind === "marks" ? null : `${one.name} ${text(latest(columns[i]))}`));
    this.values.textContent = `step ${x[at]}: ${parts.filter(Boolean).join(" · ")}`;
  }

  _zoomed(chart, key) {
    if (key !== "x" || Chart.zooming) return;
    Chart.zooming = true;
    const { min, max } = chart.scales.x;
    for (const other of all) if (other.drawn && other.drawn !== chart) other.drawn.setScale("x", { min, max });
    Chart.zooming = false;
  }

  _key(event) {
    const chart = this.drawn, x = chart?.data[0];
    if (!x?.length) return;
    const at = chart.cursor.idx ?? 0, stride = event.shiftKey ? Math.ceil(x.length / 20) : 1;
    const to = { ArrowLeft: at - stride, ArrowRight: at + stride, Home: 0, End: x.length - 1 }[event.key];
    if (to !== undefined) {
      const i = Math.min(Math.max(to, 0), x.length - 1), row = this.shown.findIndex((one, k) => chart.data[k + 1][i] != null);
      const top = row < 0 ? 0 : chart.valToPos(chart.data[row + 1][i], "y");
      chart.setCursor({ left: chart.valToPos(x[i], "x"), top });
      document.getElementById("reading").textContent = this.values.textContent;
    } else if (event.key === "+" || event.key === "-" || event.key === "0" || event.key === "Escape") {
      const { min, max } = chart.scales.x, middle = x[at], half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2);
      const whole = event.key === "0" || event.key === "Escape";
      const low = whole ? x[0] : Math.max(middle - half, x[0]), high = whole ? x[x.length - 1] : Math.min(middle + half, x[x.length - 1]);
      if (high > low) chart.setScale("x", { min: low, max: high });
    } else return;
    event.preventDefault();
  }

  _resize() {
    const width = this.plot.clientWidth;
    if (this.drawn && width && !Chart.printing && width !== this.drawn.width) this.drawn.setSize({ width, height: HEIGHT });
  }
}
