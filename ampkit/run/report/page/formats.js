"use strict";
// What the layers lose in formats below 16 bits, as tables whose cells are coloured by the error.

const PRODUCTS = ["forward", "input_gradient", "weight_gradient"];
const LEAST_ERROR = 1e-5, MOST_ERROR = 0.1;

function heat(error) {
  if (error == null) return element("td", {}, "not finite");
  const level = Math.log(Math.max(error, LEAST_ERROR) / LEAST_ERROR) / Math.log(MOST_ERROR / LEAST_ERROR);
  return element("td", { style: `--share: ${(60 * Math.min(1, level)).toFixed(0)}` }, `${Number((100 * error).toPrecision(2))} %`);
}

function formatTable(caption, head, rows) {
  const names = element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map(([name, ...cells]) => element("tr", {}, element("th", { scope: "row" }, name), ...cells));
  return scrolled(caption, element("table", { class: "heat" }, element("thead", {}, names), element("tbody", {}, ...body)));
}

function survival(run) {
  const { layers, formats } = run.lab, recipes = formats.map((each) => each.recipe);
  const errors = new Map(layers.map((row) => [`${row.layer} ${row.recipe}`, row.error]));
  const names = [...new Set(layers.map((row) => row.layer))];
  const rows = names.map((layer) => [layer, ...recipes.map((recipe) => heat(errors.get(`${layer} ${recipe}`)))]);
  rows.push(["all layers", ...formats.map((each) => heat(each.error))]);
  if (run.lab.output) rows.push([`all without ${run.lab.output}`, ...formats.map((each) => heat(each.inner))]);
  for (const product of PRODUCTS) {
    const cell = (each) => (product in each.products ? heat(each.products[product]) : element("td", {}, "–"));
    rows.push([`${product} alone`, ...formats.map(cell)]);
  }
  const whole = run.lab.kept, share = (each) => (each.kept == null ? "–" : `${(100 * each.kept / whole).toFixed(0)} %`);
  if (whole) rows.push([`kept for backward, of ${Number((whole / 1e6).toPrecision(3))} MB in ${run.lab.dtype}`, ...formats.map((each) => element("td", {}, share(each)))]);
  return formatTable(`${run.name}: layers and formats`, ["layer", ...recipes], rows);
}

function trainings(run) {
  const { trained, dtype } = run.lab, base = trained[0]?.val_loss;
  const change = (each) => (each.val_loss == null || !base ? "–" : `${(100 * (each.val_loss / base - 1)).toFixed(2)} %`);
  const cells = (each) => [each.loss, each.val_loss].map((value) => element("td", {}, text(value)));
  const rows = trained.map((each) => [each.name, ...cells(each), element("td", {}, each.failure ?? change(each))]);
  return formatTable(`${run.name}: trainings`, ["format", "mean training loss", "validation loss", `against ${dtype}`], rows);
}

function products(run) {
  const rows = run.lab.layers.flatMap(({ layer, recipe, products: found }) => Object.entries(found).map(([product, loss]) => {
    const shares = [...loss.flushed, ...(loss.saturated ?? [])];
    const cells = [heat(loss.error), ...shares.map((share) => element("td", {}, percent(share)))];
    return [`${layer} · ${recipe} · ${product}`, ...cells];
  }));
  const head = ["product", "relative error", "flushed to 0, first operand", "second operand", "saturated, first operand", "second operand"];
  return element("details", {}, element("summary", {}, `${run.name}: every product`), formatTable(`${run.name}, products`, head, rows));
}

function cards(run) {
  const rows = run.lab.cards.map(({ name, figures }) => [name, ...figures.map((cell) => element("td", {}, cell))]);
  return formatTable(`${run.name}: speed and memory on cards`, ["card, against bfloat16", ...run.lab.formats.map((each) => each.recipe)], rows);
}

// Who published the figures of which cards.
function sources(run) {
  const found = new Map();
  for (const { name, source } of run.lab.cards) found.set(source, [...(found.get(source) ?? []), name]);
  return element("ul", { class: "hint" }, ...[...found].map(([source, names]) => element("li", {}, `${names.join("; ")}: ${source}`)));
}

function drawFormats() {
  const shown = runs.filter((run) => run.lab), parent = byId("formats");
  byId("formats-missing").hidden = shown.length > 0;
  byId("formats-about").hidden = !shown.length;
  for (const run of shown) {
    parent.append(survival(run));
    if (run.lab.trained.length) parent.append(trainings(run));
    if (run.lab.cards?.length) parent.append(cards(run), sources(run));
    parent.append(element("p", { class: "hint" }, `The fewest bits within ${percent(run.lab.budget)}: ${run.lab.policy}`), products(run));
  }
}
