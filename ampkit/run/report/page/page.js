"use strict";
// The report: which charts and tables are made of the numbers in the page.

const { made, runs } = JSON.parse(document.getElementById("numbers").textContent);
const byId = (id) => document.getElementById(id);
const last = (column) => (column ?? []).filter((value) => value !== null).at(-1) ?? null;
const precision = (run) => run.settings.amp?.dtype ?? "";

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

function drawCurves() {
  const parent = byId("curves"), positive = { log: 10 };
  const add = (options) => { if (options.series.length) new Chart(parent, options); };
  add({ title: "Loss", series: [...curves("loss"), ...scores("val_loss")], smooth: true, ...positive });
  add({ title: "Accuracy", series: scores("accuracy") });
  add({ title: "Mean IoU", series: scores("mean_iou") });
  add({ title: "Character error rate", series: scores("char_error_rate") });
  if (runs.some((run) => run.steps.scale?.some((value) => value !== 1))) {
    const scaled = curves("scale", "step").filter((one) => one.y.some((value) => value !== 1));
    add({ title: "Loss scale (dots: skipped steps)", series: [...scaled, ...skips()], log: 2, startLog: true });
  }
  add({ title: "Gradient norm", series: curves("grad_norm"), smooth: true, startLog: true, ...positive });
  add({ title: "Learning rate", series: curves("lr") });
  const times = runs.map((run, i) => ({ name: run.name, run: i, x: run.steps.step ?? [], y: stepTimes(run.steps), kind: "line" }));
  add({ title: "Time of a step", unit: "ms", series: times.filter((one) => one.y.some((value) => value !== null)), smooth: true, ...positive });
  add({ title: "Memory", unit: "MB", series: curves("memory").map((one) => ({ ...one, y: one.y.map((v) => (v === null ? null : v / 1e6)) })) });
}

const COLUMNS = [
  ["precision", (run) => precision(run) || "–"],
  ["steps", (run) => text(last(run.steps.step))],
  ["loss", (run) => text(last(run.steps.loss))],
  ["validation loss", (run) => text(last(run.evaluations.val_loss))],
  ["accuracy", (run) => (last(run.evaluations.accuracy) === null ? "–" : `${(100 * last(run.evaluations.accuracy)).toFixed(2)} %`)],
  ["ms per step", (run) => text(median(stepTimes(run.steps)))],
  ["skipped", (run) => text(last(run.steps.skipped))],
  ["loss scale", (run) => text(last(run.steps.scale))],
];

function drawSummary() {
  const head = ["run", ...COLUMNS.map(([name]) => name)].map((name) => element("th", { scope: "col" }, name));
  const rows = runs.map((run, i) => {
    const box = element("input", { type: "checkbox", "data-run": i });
    box.checked = true;
    const swatch = element("span", { class: "swatch", style: `background: var(--series-${i % 8})` });
    const name = element("th", { scope: "row" }, element("label", {}, box, swatch, run.name));
    return element("tr", {}, name, ...COLUMNS.map(([, cell]) => element("td", {}, cell(run))));
  });
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  byId("summary").append(element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Summary of the runs" }, table));
  byId("summary").addEventListener("change", redraw);
  byId("findings").append(...findings().map((line) => element("li", {}, line)));
}

// What the numbers say, in words: skipped steps of each run, and each run against the float32 one.
function findings() {
  const found = [], wide = runs.find((run) => precision(run) === "float32");
  for (const run of runs) {
    const skipped = last(run.steps.skipped), steps = last(run.steps.step);
    if (skipped) found.push(`${run.name}: ${skipped} of ${steps} steps were skipped because gradients overflowed at the loss scale.`);
    if (!wide || run === wide) continue;
    const ratio = median(stepTimes(wide.steps)) / median(stepTimes(run.steps));
    const [mine, others] = [run, wide].map((one) => last(one.evaluations.val_loss) ?? last(one.steps.loss));
    const times = ratio > 1 ? `is ${ratio.toFixed(2)} times as fast as` : `takes ${(1 / ratio).toFixed(2)} times as long per step as`;
    const speed = Math.abs(ratio - 1) < 0.02 ? "is as fast as" : times;
    const difference = others ? `; its loss ends ${Math.abs((100 * (mine - others)) / others).toFixed(1)} % ${mine > others ? "higher" : "lower"}` : "";
    if (Number.isFinite(ratio)) found.push(`${run.name} ${speed} ${wide.name} (float32)${difference}.`);
  }
  return found;
}

function drawNotes() {
  const notes = runs.flatMap((run) => run.notes.map((note) => `${run.name}: ${note}`));
  const recipes = new Set(runs.map((run) => `${run.settings.model?.name}, ${run.settings.data?.name}`));
  if (recipes.size > 1) notes.push("The runs are of different models or data: their losses are not comparable.");
  byId("notes").append(...notes.map((note) => element("li", {}, note)));
}

function drawRecipes() {
  for (const run of runs) {
    const recipe = element("pre", { tabindex: "0", "aria-label": `${run.name}, recipe` }, run.config || "not known");
    byId("recipes").append(element("details", {}, element("summary", {}, run.name), recipe, ...run.environment.map(machine)));
  }
}

// Where a run started, and what ampkit doctor found there.
function machine({ started, step, ampkit, found }) {
  const row = ([topic, what]) => element("tr", {}, element("th", { scope: "row" }, topic), element("td", {}, what));
  const title = `Started ${started}${step ? ` after step ${step}` : ""} with ampkit ${ampkit}`;
  const table = element("table", {}, element("caption", {}, title), element("tbody", {}, ...Object.entries(found ?? {}).map(row)));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table);
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
byId("smoothing").value = Math.max(0, ...runs.map((run) => run.steps.step?.length ?? 0)) > 200 ? 0.9 : 0;
drawNotes();
drawSummary();
drawCurves();
drawPrecision();
drawRecipes();
redraw();
byId("smoothing").addEventListener("input", redraw);
byId("theme").addEventListener("change", (event) => setTheme(event.target.value));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => { Chart.printing = true; setTheme("light"); });
addEventListener("afterprint", () => { Chart.printing = false; setTheme(byId("theme").value); });
