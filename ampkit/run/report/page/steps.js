"use strict";
// Where the time and the memory of a step go in each run, as tables with bars, and what runs in which dtype.

// A table of the runs side by side: by row, a name and the value of each run, as a bar and in words.
function bars(title, shown, names, value, words) {
  const most = Math.max(...shown.flatMap((run) => names.map((name) => value(run, name))));
  const cell = (run, name) => {
    const size = value(run, name), width = most ? (100 * size) / most : 0;
    const bar = element("span", { class: "bar", style: `width: ${width.toFixed(1)}%; background: var(--series-${runs.indexOf(run) % COLORS})` });
    return element("td", {}, element("span", { class: "amount" }, words(run, size)), element("span", { class: "track" }, bar));
  };
  const row = (name) => element("tr", {}, element("th", { scope: "row" }, name), ...shown.map((run) => cell(run, name)));
  const head = element("tr", {}, ...[title, ...shown.map((run) => run.name)].map((name) => element("th", { scope: "col" }, name)));
  return scrolled(title, element("table", { class: "bars" }, element("thead", {}, head), element("tbody", {}, ...names.map(row))));
}

// The keys of an object in any of the runs, those with the largest values first.
function keysOf(shown, table) {
  const sums = new Map();
  for (const run of shown) for (const [name, value] of Object.entries(table(run))) sums.set(name, (sums.get(name) ?? 0) + value);
  return [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]).map(([name]) => name);
}

function plan(run) {
  const { policy, head, rows, sentences, notes } = run.measured.plan;
  const names = element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)));
  const cells = (row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell)));
  const table = element("table", { class: "texts" }, element("thead", {}, names), element("tbody", {}, ...rows.map(cells)));
  const said = element("ul", {}, ...[...sentences, ...notes].map((line) => element("li", {}, line)));
  return element("details", {}, element("summary", {}, `${run.name}: ${policy}`), said, scrolled(`${run.name}, plan`, table));
}

function drawSteps() {
  const shown = runs.filter((run) => run.measured), parent = byId("steps");
  byId("steps-missing").hidden = shown.length > 0;
  byId("steps-about").hidden = !shown.length;
  if (!shown.length) return;
  const ledger = (run) => run.measured.ledger, time = (run) => ledger(run).times, memory = (run) => ledger(run).memory;
  const share = (run, seconds) => `${short(1000 * seconds)} ms, ${((100 * seconds) / ledger(run).seconds).toFixed(0)} %`;
  const where = shown.filter((run) => run.measured.where).map((run) => `${run.name}: on ${run.measured.where}, ${run.measured.made}`);
  parent.append(
    bars("time of a step", shown, keysOf(shown, time), (run, name) => time(run)[name] ?? 0, share),
    bars("memory", shown, keysOf(shown, memory), (run, name) => memory(run)[name] ?? 0, (run, size) => bytes(size)),
    ...where.map((line) => element("p", { class: "hint" }, line)),
    element("h3", {}, "What runs in which dtype"),
    element("p", { class: "hint" }, "f16, bf16 and f32 are float16, bfloat16 and float32: the dtypes of an op's inputs and of its result. casts: copies into another dtype, w those of weights, which are kept until the optimizer changes them. saved: what is kept for the backward."),
    ...shown.map(plan),
  );
}
