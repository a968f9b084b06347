"use strict";
// The report: which charts and tables are made of the numbers in the page.

const { made, findings, runs } = JSON.parse(document.getElementById("numbers").textContent);
const byId = (id) => document.getElementById(id);
const short = (value) => String(Number(value.toPrecision(3)));
const bytes = (size) => (size === null ? "–" : size < 1e6 ? `${short(size / 1e3)} kB` : size < 1e9 ? `${short(size / 1e6)} MB` : `${short(size / 1e9)} GB`);
const last = (column) => (column ?? []).filter((value) => value !== null).at(-1) ?? null;
const precision = (run) => run.settings.amp?.dtype ?? run.environment.at(-1)?.dtype ?? ""; // a Trainer has no recipe

function median(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b), half = sorted.length >> 1;
  if (!sorted.length) return null;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// Milliseconds per step between a logged step and the one before.
function stepTimes(steps) {
  const { step = [], seconds = [] } = steps;
  return step.map((at, i) => {
    if (i === 0 || seconds[i] == null || seconds[i - 1] == null) return null;
    return (1000 * (seconds[i] - seconds[i - 1])) / (at - step[i - 1]);
  });
}

const curves = (column, kind = "line") => runs.flatMap((run, i) =>
  run.steps[column] ? [{ name: run.name, run: i, x: run.steps.step, y: run.steps[column], kind }] : []);
const scores = (column) => runs.flatMap((run, i) =>
  run.evaluations[column] ? [{ name: `${run.name}, validation`, run: i, x: run.evaluations.step, y: run.evaluations[column], kind: "points" }] : []);

// The loss scale at the steps after which more steps were skipped than before.
function skips() {
  return runs.flatMap((run, i) => {
    const { step = [], scale = [], skipped = [] } = run.steps;
    const y = scale.map((value, k) => (skipped[k] > (skipped[k - 1] ?? 0) ? value : null));
    return y.some((value) => value !== null) ? [{ name: `${run.name}, skipped`, run: i, x: step, y, kind: "marks" }] : [];
  });
}

// Samples or tokens per second, by unit, as runs of both are not comparable; of runs that do not tell, steps.
function throughput() {
  const units = new Map();
  runs.forEach((run, i) => {
    const { unit = "steps", per_step: each = 1 } = run.environment.at(-1) ?? {};
    const y = stepTimes(run.steps).map((time) => (time > 0 ? (1000 * each) / time : null));
    const one = { name: run.name, run: i, x: run.steps.step ?? [], y, kind: "line" };
    if (y.some((value) => value !== null)) units.set(unit, [...(units.get(unit) ?? []), one]);
  });
  return units;
}

function drawCurves() {
  const parent = byId("curves");
  const add = (options) => { if (options.series.length) new Chart(parent, options); };
  add({ title: "Loss", series: [...curves("loss"), ...scores("val_loss")], smooth: true, log: 10,
    note: "Lines: training; dots: validation. In 16 bits it should follow float32 closely." });
  add({ title: "Accuracy", series: scores("accuracy") });
  add({ title: "Mean IoU", series: scores("mean_iou") });
  add({ title: "Character error rate", series: scores("char_error_rate") });
  add({ title: "RMSE", series: scores("rmse") });
  add({ title: "R2", series: scores("r2") });
  const scaled = curves("scale", "step").filter((one) => one.y.some((value) => value !== 1));
  add({ title: "Loss scale", series: scaled.length ? [...scaled, ...skips()] : [], log: 2, startLog: true,
    note: "float16 gradients are multiplied by it, so that small ones do not become zero. Where one overflows, the step is skipped (a dot) and the scale falls; later it grows again." });
  add({ title: "Gradient norm", series: curves("grad_norm"), smooth: true, startLog: true, log: 10,
    note: "Without the loss scale, before clipping. A gap is a skipped step." });
  add({ title: "Learning rate", series: curves("lr") });
  for (const [unit, series] of throughput()) add({ title: "Throughput", unit: `${unit}/s`, series, smooth: true, log: 10 });
  add({ title: "Peak memory", unit: "MB", note: "So far: of the process, or of arrays on a GPU.",
    series: curves("memory").map((one) => ({ ...one, y: one.y.map((v) => (v === null ? null : v / 1e6)) })) });
}

const ranks = (run) => run.environment.at(-1)?.ranks ?? 1;

const COLUMNS = [
  ["precision", (run) => precision(run) || "–"],
  ...(runs.some((run) => ranks(run) > 1) ? [["ranks", ranks]] : []),
  ["steps", (run) => text(last(run.steps.step))],
  ["loss", (run) => text(last(run.steps.loss))],
  ["validation loss", (run) => text(last(run.evaluations.val_loss))],
  ["accuracy", (run) => (last(run.evaluations.accuracy) === null ? "–" : `${(100 * last(run.evaluations.accuracy)).toFixed(2)} %`)],
  ["ms per step", (run) => text(median(stepTimes(run.steps)))],
  ["peak memory", (run) => bytes(last(run.steps.memory))],
  ["skipped", (run) => text(last(run.steps.skipped))],
  ["loss scale", (run) => text(last(run.steps.scale))],
];

function drawSummary() {
  const head = ["run", ...COLUMNS.map(([name]) => name)].map((name) => element("th", { scope: "col" }, name));
  const rows = runs.map((run, i) => {
    const box = element("input", { type: "checkbox", "data-run": i });
    box.checked = true;
    const swatch = element("span", { class: i < COLORS ? "swatch" : "swatch dashed", style: `background-color: var(--series-${i % COLORS})` });
    const name = element("th", { scope: "row" }, element("label", {}, box, swatch, run.name));
    return element("tr", {}, name, ...COLUMNS.map(([, cell]) => element("td", {}, cell(run))));
  });
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  byId("summary").append(scrolled("Summary of the runs", table));
  byId("summary").addEventListener("change", redraw);
  byId("findings").append(...findings.map((line) => element("li", line.startsWith("  ") ? { class: "reason" } : {}, line)));
}

function drawNotes() {
  const notes = runs.flatMap((run) => run.notes.map((note) => `${run.name}: ${note}`));
  const recipes = new Set(runs.map((run) => `${run.settings.model?.name}, ${run.settings.data?.name}`));
  if (recipes.size > 1) notes.push("The runs are of different models or data: their losses are not comparable.");
  byId("notes").append(...notes.map((note) => element("li", {}, note)));
}

function drawRecipes() {
  if (!runs.some((run) => run.config)) { // the commands of these hints need a recipe
    for (const hint of document.querySelectorAll("[data-own]")) hint.textContent = hint.dataset.own;
  }
  for (const run of runs) {
    const recipe = element("pre", { tabindex: "0", "aria-label": `${run.name}, recipe` }, run.config || "None is known.");
    byId("recipes").append(element("details", {}, element("summary", {}, run.name), recipe, ...run.environment.map(machine)));
  }
}

// Where a run started, in which dtypes it trains, and what ampkit doctor found there.
function machine({ started, step, ampkit, ranks: size, precisions, found }) {
  const row = ([topic, what]) => element("tr", {}, element("th", { scope: "row" }, topic), element("td", {}, what));
  const several = size > 1 ? `, on ${size} ranks` : "";
  const title = `Started ${started}${step ? ` after step ${step}` : ""} with ampkit ${ampkit}${several}`;
  const table = element("table", {}, element("caption", {}, title), element("tbody", {}, ...Object.entries({ ...precisions, ...found }).map(row)));
  return scrolled(title, table);
}

function redraw() {
  const shown = new Set([...document.querySelectorAll("[data-run]")].filter((box) => box.checked).map((box) => Number(box.dataset.run)));
  for (const chart of all) {
    chart.runs = shown;
    chart.keep = Number(byId("smoothing").value);
    chart.draw();
  }
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  redraw();
}

byId("title").textContent = runs.length === 1 ? runs[0].name : `${runs.length} runs compared`;
byId("made").textContent = `Made ${made} by ampkit.`;
byId("smoothing").value = Math.min(0.96, Math.max(0, 1 - 60 / Math.max(1, ...runs.map((run) => run.steps.step?.length ?? 0))));
drawNotes();
drawSummary();
drawCurves();
drawPrecision();
drawFormats();
drawSteps();
drawRecipes();
redraw();
byId("smoothing").addEventListener("input", redraw);
byId("theme").addEventListener("change", (event) => setTheme(event.target.value));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => { Chart.printing = true; setTheme("light"); });
addEventListener("afterprint", () => { Chart.printing = false; setTheme(byId("theme").value); });
