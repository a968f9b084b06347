"use strict";
// What 16 bits lose: a map of layers and steps, and the histogram of one layer's exponents with the formats' ranges.

const KINDS = ["gradient", "parameter gradient", "activation", "parameter"];
const NAMES = { present: "the dtype stored", float16: "float16", bfloat16: "bfloat16", float8_e4m3fn: "FP8 E4M3", float8_e5m2: "FP8 E5M2" };
const LOSSES = { flushed: "flushed to zero", subnormal: "subnormal", overflow: "overflow" };
// The exponents of the smallest subnormal, the smallest normal and the largest numbers.
const RANGES = { float16: [-24, -14, 15], bfloat16: [-133, -126, 127], float8_e4m3fn: [-9, -6, 8], float8_e5m2: [-16, -14, 15] };
const ROW = 16, LABELS = 210, SMALLEST = 1e-6;

function choice(label, options, change) {
  const select = element("select", {}, ...options.map(([value, text]) => element("option", { value }, text)));
  select.addEventListener("change", change);
  return [element("label", {}, `${label} `, select), select];
}

// 0 for nothing, else from 0.15 to 1 by the logarithm of a share.
const level = (share) => (share > 0 ? 0.15 + 0.85 * Math.max(0, 1 - Math.log10(share) / Math.log10(SMALLEST)) : 0);
const percent = (share) => (share ? `${text(100 * share)} %` : "none");
const layerName = (layer) => [layer.path, layer.op].filter(Boolean).join(" · ");

const power = (exponent) => `2${[...String(exponent)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻").join("")}`;

function mix(low, high, weight) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [a, b] = [parts(low), parts(high)];
  return `rgb(${a.map((value, i) => Math.round(value + (b[i] - value) * weight)).join()})`;
}

class PrecisionMap {
  constructor(parent, name, data) {
    Object.assign(this, { name, data, row: 0, column: data.steps.length - 1 });
    const kinds = KINDS.filter((kind) => data.layers.some((layer) => layer.of === kind)).map((kind) => [kind, `${kind}s`]);
    if (data.updates.length) kinds.push(["update", "lost updates"]);
    const draw = () => { this._toWorst(); this.draw(); };
    const [kindLabel, kind] = choice("of", kinds, draw);
    const [formatLabel, format] = choice("in", Object.entries(NAMES), draw);
    const [lossLabel, loss] = choice("share", Object.entries(LOSSES), draw);
    Object.assign(this, { kind, format, loss });
    this._start();
    this._toWorst();
    this.canvas = element("canvas", {});
    this.plot = element("div", { class: "plot map", tabindex: "0", role: "application", "aria-roledescription": "map" }, this.canvas);
    this.values = element("p", { class: "values" });
    const caption = element("figcaption", {}, element("h3", {}, `${name}: what is lost, layer by layer`));
    const about = element("p", { class: "hint" }, "A row is a layer, a column a step. The stronger the colour, the larger the share of values that is lost (logarithmic, from 0.0001 %). Point at a cell, or use the arrow keys, for its numbers and the layer's values below.");
    const controls = element("div", { class: "controls" }, lossLabel, kindLabel, formatLabel);
    this.figure = element("figure", { class: "wide" }, caption, about, controls, this.plot, this.values);
    this.histogram = new Histogram(this.figure);
    this.plot.addEventListener("keydown", (event) => this._key(event));
    this.canvas.addEventListener("pointermove", (event) => this._point(event));
    this.canvas.addEventListener("click", (event) => this._point(event));
    parent.append(this.figure);
    all.push(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // Start with the first format that loses anything, and with where it loses most.
  _start() {
    for (const format of ["present", "float16", "float8_e4m3fn"]) {
      const found = this.data.layers.flatMap((layer) => Object.entries(layer.lost).map(([key, shares]) => [key, layer.of, Math.max(...shares)]));
      const [key, of] = found.filter(([name]) => name.startsWith(`${format} `)).sort((a, b) => b[2] - a[2])[0] ?? [];
      if (!key) continue;
      [this.format.value, this.loss.value, this.kind.value] = [format, key.split(" ")[1], of];
      return;
    }
  }

  // Select the cell where most is lost, the last of several.
  _toWorst() {
    const worst = Math.max(...this._rows().flatMap(({ shares }) => shares));
    [this.row, this.column] = [0, this.data.steps.length - 1];
    if (worst) this._rows().forEach(({ shares }, i) => shares.forEach((share, k) => { if (share === worst) [this.row, this.column] = [i, k]; }));
  }

  // The rows of the map: their names and shares by column; updates have one share, of the 16-bit formats alone.
  _rows() {
    if (this.kind.value === "update") {
      const format = this.format.value === "float16" ? "float16" : "bfloat16";
      return this.data.updates.map((found) => ({ name: found.path, shares: found[format] }));
    }
    const key = `${this.format.value} ${this.loss.value}`, none = this.data.steps.map(() => 0);
    const layers = this.data.layers.filter((layer) => layer.of === this.kind.value);
    return layers.map((layer) => ({ name: layerName(layer), shares: layer.lost[key] ?? none, layer }));
  }

  draw() {
    const rows = this.rows = this._rows(), width = Chart.printing ? 2 * PRINTED_WIDTH : Math.max(this.plot.clientWidth, 240);
    const labels = Math.min(LABELS, width * 0.45), height = ROW * rows.length + 24, ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.canvas.style.cssText = `width: ${width}px; height: ${height}px`;
    const pen = this.canvas.getContext("2d"), cell = (width - labels) / this.data.steps.length;
    Object.assign(this, { labels, cell });
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    rows.forEach(({ name, shares }, i) => {
      pen.fillStyle = color("--faint");
      pen.textAlign = "right";
      pen.fillText(this._shortened(pen, name, labels - 10), labels - 6, ROW * (i + 0.5));
      shares.forEach((share, k) => {
        pen.fillStyle = share ? mix(color("--empty"), color("--full"), level(share)) : color("--empty");
        pen.fillRect(labels + k * cell, ROW * i, Math.max(cell - (cell > 4 ? 1 : 0), 1), ROW - 1);
      });
    });
    this._steps(pen, width, height);
    pen.strokeStyle = color("--accent");
    pen.lineWidth = 2;
    pen.strokeRect(labels + this.column * cell, ROW * this.row, Math.max(cell - 1, 2), ROW - 1);
    this.figure.dataset.marks = rows.length * this.data.steps.length;
    this._select();
  }

  _steps(pen, width, height) {
    const { steps } = this.data, every = Math.ceil(60 / this.cell);
    pen.fillStyle = color("--faint");
    pen.textAlign = "center";
    for (let k = 0; k < steps.length; k += every) {
      const x = Math.min(this.labels + (k + 0.5) * this.cell, width - 16);
      pen.fillText(String(steps[k]), x, height - 12);
    }
  }

  _shortened(pen, name, width) {
    if (pen.measureText(name).width <= width) return name;
    let start = 1;
    while (start < name.length && pen.measureText(`…${name.slice(start)}`).width > width) start++;
    return `…${name.slice(start)}`;
  }

  _select() {
    const found = this.rows[this.row];
    if (!found) return;
    const { steps } = this.data, share = found.shares[this.column];
    const what = this.kind.value === "update" ? "of the updates lost" : `${LOSSES[this.loss.value]} in ${NAMES[this.format.value]}`;
    const largest = found.layer ? `, largest ${text(found.layer.largest[this.column])}` : "";
    this.values.textContent = `${found.name}, step ${steps[this.column]}: ${percent(share)} ${what}${largest}`;
    const worst = Math.max(...this.rows.flatMap((row) => row.shares));
    const sum = worst ? `The largest share is ${percent(worst)}.` : "Nothing is lost.";
    this.plot.setAttribute("aria-label", `Map of ${this.rows.length} layers over ${steps.length} steps. ${sum} Arrow keys read values.`);
    this.histogram.show(found.layer, this.format.value);
  }

  _point(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const row = Math.floor(y / ROW), column = Math.floor((x - this.labels) / this.cell);
    if (row < 0 || row >= this.rows.length) return;
    this.row = row;
    this.column = Math.min(Math.max(column, 0), this.data.steps.length - 1);
    this.draw();
  }

  _key(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    this.row = Math.min(Math.max(this.row + move[0], 0), this.rows.length - 1);
    this.column = Math.min(Math.max(this.column + move[1], 0), this.data.steps.length - 1);
    this.draw();
    document.getElementById("reading").textContent = this.values.textContent;
    event.preventDefault();
  }
}

// Values of one layer by binary exponent, in each quarter of the run, over the range of a format.
class Histogram {
  constructor(parent) {
    this.title = element("h4", {});
    this.canvas = element("canvas", { role: "img" });
    this.note = element("p", { class: "values" });
    this.box = element("div", { class: "histogram" }, this.title, this.canvas, this.note);
    parent.append(this.box);
  }

  show(layer, format) {
    this.box.hidden = !layer;
    if (!layer) return;
    const name = format === "present" ? (RANGES[layer.stored] ? layer.stored : "float16") : format;
    const shift = Math.round(Math.log2(layer.scale)), [tiny, normal, top] = RANGES[name].map((exponent) => exponent - shift);
    const found = layer.histograms.filter((one) => one.counts.length);
    const lows = found.map((one) => one.exponent), highs = found.map((one) => one.exponent + one.counts.length - 1);
    const low = Math.max(Math.min(...lows, tiny) - 1, Math.min(...lows, 0) - 30), high = Math.min(Math.max(...highs, top) + 1, Math.max(...highs, 0) + 30);
    this.title.textContent = `${layerName(layer)}, ${layer.of}, ${layer.dtype}: values by exponent`;
    const scaled = shift ? ` at a loss scale of ${text(layer.scale)}` : "";
    this.note.textContent = `Green: normal numbers of ${NAMES[name]}${scaled}; orange: subnormal, of less precision; outside: flushed to zero, or overflow. Lines: quarters of the run, the last one thickest.`;
    this.canvas.setAttribute("aria-label", this._summary(layer, found, name));
    this._draw(found, { tiny, normal, top, low, high });
  }

  _summary(layer, found, name) {
    if (!found.length) return `${layerName(layer)}: all values are zero`;
    const latest = found[found.length - 1];
    return `${layerName(layer)}: exponents from ${latest.exponent} to ${latest.exponent + latest.counts.length - 1}; ${NAMES[name]} has ${RANGES[name].join(", ")} as smallest subnormal, smallest normal and largest exponents`;
  }

  _draw(found, { tiny, normal, top, low, high }) {
    const width = Chart.printing ? 2 * PRINTED_WIDTH : Math.max(this.box.clientWidth, 240), height = 150, ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.canvas.style.cssText = `width: ${width}px; height: ${height}px`;
    const pen = this.canvas.getContext("2d"), unit = width / (high - low + 1), bottom = height - 20;
    const x = (exponent) => (exponent - low) * unit;
    pen.scale(ratio, ratio);
    pen.fillStyle = color("--subnormal");
    pen.fillRect(x(tiny), 0, x(normal) - x(tiny), bottom);
    pen.fillStyle = color("--normal");
    pen.fillRect(x(normal), 0, x(top + 1) - x(normal), bottom);
    found.forEach((one, i) => {
      const peak = Math.max(...one.counts);
      pen.beginPath();
      one.counts.forEach((count, k) => {
        const y = bottom - (bottom - 6) * Math.sqrt(count / peak);
        pen.lineTo(x(one.exponent + k), y);
        pen.lineTo(x(one.exponent + k + 1), y);
      });
      pen.strokeStyle = seriesColor(0);
      pen.globalAlpha = (i + 1) / found.length;
      pen.lineWidth = i === found.length - 1 ? 2 : 1;
      pen.stroke();
      pen.globalAlpha = 1;
    });
    pen.fillStyle = color("--faint");
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    const every = Math.ceil((high - low) / Math.max(4, Math.floor(width / 60)));
    for (let e = Math.ceil(low / every) * every; e <= high; e += every) pen.fillText(power(e), x(e) + unit / 2, height - 6);
  }
}

function drawPrecision() {
  const shown = runs.filter((run) => run.precision);
  if (!shown.length) return;
  document.getElementById("precision-missing").hidden = true;
  for (const run of shown) new PrecisionMap(document.getElementById("precision"), run.name, run.precision);
}
