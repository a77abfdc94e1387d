// Compare results: ratios with intervals, over benchmarks, and what differs between the systems. Descriptions and curves are in a file of each result, which is
// read once the result is chosen.
"use strict";

const RUNS_DRAWN_MAX = 15; // lines in one plot; of more, the median run of each result
const DASHES = [null, "9 3", "3 3", "12 3 2 3"]; // results on one device have one colour
const FOUND_MAX = 6;
const SENTENCES_MAX = 4; // shown at once

function sentence(first, second, found) {
  const runs = found.runs.join(" and ");
  if (found.low === null) {
    return `${first} against ${second}: ratio ${digits(found.value)}; ${runs} runs are too few for an interval, no difference can be claimed.`;
  }
  if (found.low <= 1 && found.high >= 1) {
    return `No difference between ${first} and ${second} can be claimed from ${runs} runs: ratio ${digits(found.value)}, 95% interval ${digits(found.low)}–${digits(found.high)}.`;
  }
  if (found.value < 1) {
    return sentence(second, first, turned(found));
  }
  return `${first} is ${digits(found.value)} times as fast as ${second}, 95% interval ${digits(found.low)}–${digits(found.high)} (${runs} runs).`;
}

const node = (kind, ...children) => make(kind, {}, ...children);
const head = (label, title) => make("th", { scope: "col", ...(title ? { title } : {}) }, label);
const address = (id, end) => `results/${id.split("/").map(encodeURIComponent).join("/")}${end}`;
const who = (result) => (result.division === "closed" ? result.name : `${result.name}, ${result.division}`);

function table(name, headers, rows) {
  return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: name },
    make("table", { className: "plain" }, node("thead", node("tr", ...headers)), node("tbody", ...rows)));
}

// Which of two is so many times as fast as the other: the ratio is never below 1, so that it reads one way.
const ahead = (found) => (found.value < 1 ? [turned(found), "the first"] : [found, "this"]);
function tellRatio(found) {
  const [larger, who] = ahead(found);
  return [isDifference(found) ? `${who} is ${digits(larger.value)} times as fast` : "no difference", make("span", { className: "muted" }, ` ${interval(larger)}`)];
}

// All results of a benchmark on one axis: to the right of the line those that are faster than the first.
function plotRatios(results, ratios, width) {
  const rows = results.map((result) => ({ result, ...ratios.get(result) }));
  const ends = rows.flatMap((row) => [row.value, row.low ?? 1, row.high ?? 1]), far = Math.max(1.1, ...ends, ...ends.map((end) => 1 / end)) * 1.05;
  const marks = ticks(1, far, width < 500 ? 3 : 5), y = (row) => row.result.name;
  return Plot.plot({
    width, height: 60 + 44 * rows.length, marginLeft: 8, marginRight: 8, marginTop: 8, marginBottom: 46, style: { fontSize: "12px" }, symbol: { type: "identity" },
    x: { type: "log", domain: [1 / far, far], axis: null },
    y: { type: "band", domain: rows.map(y), axis: null },
    marks: [...markAxis("X", [...marks.filter((mark) => mark > 1).map((mark) => [1 / mark, `${mark}`]), ...marks.map((mark) => [mark, `${mark}`])]), Plot.ruleX([1], { stroke: "var(--text)" }),
      Plot.ruleY(rows.filter((row) => row.low !== null), { x1: "low", x2: "high", y, dy: 8, stroke: (row) => colour(row.result.colour), strokeWidth: 5, strokeOpacity: 0.4 }),
      Plot.dot(rows, { x: "value", y, dy: 8, r: 5, symbol: (row) => SYMBOLS[row.result.shape], fill: (row) => colour(row.result.colour) }),
      Plot.text(rows, { y, frameAnchor: "left", text: y, dx: 4, dy: -9, stroke: "var(--page)", strokeWidth: 4, fill: "var(--text)" }),
      Plot.text(["← the first is so many times as fast"], { frameAnchor: "bottom-left", dy: 38, fill: "var(--text)" }),
      Plot.text(["this one →"], { frameAnchor: "bottom-right", dy: 38, fill: "var(--text)" })],
  });
}

// One card for each result of a benchmark, the fastest first, compared with the first that was chosen.
function compareGroup(name, results, data, act) {
  const [base, ...others] = results;
  const ratios = new Map(results.map((result) => [result, result === base ? { value: 1, low: null, high: null } : meanRatio([[result.level, base.level]], data.student)]));
  const sorted = [...results].sort((a, b) => a.level.log_mean - b.level.log_mean);
  const cards = sorted.map((result) => node("li",
    make("div", { className: "named" }, make("span", { className: `key c${result.colour}` }),
      node("span", make("a", { href: address(result.id, ".html") }, result.name), node("br"),
        make("span", { className: "muted" }, `${result.division}, ${result.hardware}${result.batch ? `, batch size ${result.batch}` : ""}`))),
    make("div", {}, make("b", {}, result.score), node("br"), ...(result === base ? [make("span", { className: "muted" }, "the first, compared with")] : tellRatio(ratios.get(result)))),
    make("div", { className: "buttons" }, ...(result === base ? [] : [act("compare with this", result.name, () => act.choose([result.id, ...act.chosen()]))]),
      act("remove", result.name, () => act.choose(act.chosen().filter((id) => id !== result.id))))));
  const said = others.map((other) => make("p", { className: "sentence" }, sentence(who(other), who(base), ratios.get(other))
    + (other.division === base.division ? "" : " They are of different divisions: not the same mathematics.")));
  const area = make("div", { className: "ratio-chart" });
  if (others.length) requestAnimationFrame(() => area.replaceChildren(polish(plotRatios(sorted, ratios, Math.min(760, area.clientWidth || 340)), `ratios of speed, ${name}`)));
  return [node("h2", name), ...(others.length ? [] : [make("p", { className: "muted" }, "Add a second result of this benchmark and scale.")]),
    ...(said.length <= SENTENCES_MAX ? said : [node("details", node("summary", "in words"), ...said)]),
    area, make("ul", { className: "compared" }, ...cards)];
}

// Benchmarks as rows, systems as columns: how many times as fast each is as the first, and the mean of that.
function compareSystems(groups, data) {
  const names = [...new Set([...groups.values()].flat().map(who))];
  if (groups.size < 2 || names.length < 2) return [];
  const [base, ...others] = names, pairs = new Map(others.map((name) => [name, []]));
  const cell = (found) => node("td", ...(found ? tellRatio(found) : []));
  const rows = [...groups].map(([group, results]) => {
    const first = results.find((result) => who(result) === base);
    return node("tr", make("th", { scope: "row" }, group), node("td", first?.score ?? ""), ...others.map((name) => {
      const other = results.find((result) => who(result) === name);
      if (!first || !other) return cell();
      pairs.get(name).push([other.level, first.level]);
      return cell(meanRatio([[other.level, first.level]], data.student));
    }));
  });
  if (![...pairs.values()].some((found) => found.length > 1)) return []; // nothing to average
  const means = others.map((name) => {
    const found = pairs.get(name);
    const made = cell(found.length > 1 ? meanRatio(found, data.student) : undefined);
    if (found.length > 1) made.append(make("span", { className: "muted" }, ` of ${found.length}`));
    return made;
  });
  rows.push(make("tr", { className: "total" }, make("th", { scope: "row" }, "geometric mean"), node("td"), ...means));
  return [node("h2", "Over the benchmarks"), make("p", { className: "muted" }, `Each system against the first, ${base}, with 95% intervals. Each mean is over the benchmarks that both have.`),
    table("comparison over the benchmarks", [head("benchmark"), head(base), ...others.map((name) => head(name))], rows)];
}

// Systems on the same batch size and as many devices as one of the first machine, of all benchmarks.
function compareBatches(groups, data) {
  const machine = (result) => `${result.machine}, ${result.framework}`;
  const found = [...groups].flatMap(([name, results]) => {
    const mine = results.filter((result) => machine(result) === machine(results[0]) && result.batch);
    return mine.flatMap((base) => results.filter((other) => machine(other) !== machine(base) && other.batch === base.batch
      && other.devices === base.devices && other.division === base.division).map((other) => [name, base, other, meanRatio([[other.level, base.level]], data.student)]));
  });
  if (!found.length) return [];
  const rows = found.map(([name, base, other, one]) => node("tr", make("th", { scope: "row" }, name), node("td", `${base.batch}`), node("td", `${base.devices}`),
    node("td", machine(other)), node("td", machine(base)), node("td", ...tellRatio(one))));
  return [node("h2", "At the same batch size and number of devices"),
    table("at the same batch size", [head("benchmark"), head("batch size"), head("devices"), head("this machine"), head("the first"), head("ratio")], rows)];
}

// What is not the same in all of these results: "facts" of the systems, or "hyperparameters".
function listDifferences(results, part) {
  const columns = new Map(results.filter((result) => details.has(result.id)).map((result) => [part === "facts" ? result.name : who(result), details.get(result.id)[part]]));
  const names = [...new Set([...columns.values()].flatMap(Object.keys))];
  const rows = names.filter((name) => new Set([...columns.values()].map((values) => values[name] ?? "")).size > 1)
    .map((name) => node("tr", make("th", { scope: "row" }, name), ...[...columns.values()].map((values) => node("td", values[name] ?? ""))));
  return rows.length ? [table(`differences of ${part}, ${results[0].group}`, [head("what differs"), ...[...columns.keys()].map((name) => head(name))], rows)] : [];
}

// Minutes and values of the evaluations of a run.
const listPoints = ({ seconds, metrics }, name) => seconds.map((time, place) => [time / 60, metrics[name][place]]).filter((point) => point.every(Number.isFinite));

// Quality against time of all chosen results of a benchmark, a plot for each metric.
function overlay(results) {
  const known = results.filter((result) => details.has(result.id));
  const count = known.reduce((sum, result) => sum + details.get(result.id).runs.length, 0);
  return (details.get(known[0]?.id)?.targets ?? []).flatMap((target) => {
    const series = known.flatMap((result, place) => {
      const lines = details.get(result.id).runs.map((run) => listPoints(run, target.metric)).filter((points) => points.length).sort((a, b) => a.at(-1)[0] - b.at(-1)[0]);
      const drawn = count > RUNS_DRAWN_MAX ? lines.slice(lines.length >> 1, (lines.length >> 1) + 1) : lines;
      return drawn.map((points) => ({ label: who(result), short: result.name.split("/").at(-1), legend: who(result), colour: result.colour, shape: result.shape,
        key: result.id, line: "solid", dash: DASHES[place % 4], mark: "none", points }));
    });
    if (!series.some((one) => one.points.length > 1)) return [];
    const title = `${target.metric} against time`, figure = make("figure", { className: "plot" }, make("figcaption", {}, node("b", title)));
    showChart(figure, { x: { label: "minutes since run_start", log: false, zero: true, ticks: [] }, y: { label: `${target.metric}, ${target.better} is better`, log: false, ticks: [] },
      series, guides: [[target.target, `target ${target.target}`]] }, title);
    return [figure];
  });
}

const details = new Map();
let whenRead = () => {};

// Called by the files of results.
function addDetails(id, found) {
  details.set(id, found);
  whenRead();
}

function readDetails(results) {
  for (const result of results.filter((one) => !details.has(one.id))) {
    const wanted = address(result.id, ".js");
    if (![...document.scripts].some((script) => script.getAttribute("src") === wanted)) document.body.append(make("script", { src: wanted }));
  }
}

function showComparison() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(data.results.map((result) => [result.id, result]));
  const area = document.getElementById("comparison"), more = document.getElementById("differences"), found = document.getElementById("found");
  const form = document.querySelector("#compare form");
  document.getElementById("compare").hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  const act = (label, name, does) => {
    const made = make("button", { type: "button", ariaLabel: `${label} ${name}` }, label);
    made.addEventListener("click", does);
    return made;
  };
  act.chosen = () => state.getAll("r");
  act.choose = (ids) => {
    state.delete("r");
    for (const id of new Set(ids)) state.append("r", id);
    keep();
    show();
  };
  const told = (result) => `${result.group}, ${result.division}: ${result.name}, ${result.hardware}${result.batch ? `, batch size ${result.batch}` : ""}, ${result.score}`;

  function find() {
    const words = form.elements.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const groups = new Set(act.chosen().map((id) => byId.get(id)?.group));
    const matches = data.results.filter((result) => !act.chosen().includes(result.id)
      && words.every((word) => told(result).toLowerCase().includes(word)))
      .sort((a, b) => groups.has(b.group) - groups.has(a.group));
    form.querySelector("output").value = matches.length > FOUND_MAX ? `${FOUND_MAX} of ${matches.length}` : "";
    found.replaceChildren(...matches.slice(0, FOUND_MAX).map((result) => node("li", node("span", told(result)),
      act("add", result.name, () => act.choose([...act.chosen(), result.id])))));
  }

  const list = () => act.chosen().map((id) => byId.get(id)).filter(Boolean);
  const group = () => list().reduce((groups, result) => groups.set(result.group, [...(groups.get(result.group) ?? []), result]), new Map());

  function show() {
    const groups = group(), missing = act.chosen().filter((id) => !byId.has(id));
    area.replaceChildren(...compareSystems(groups, data), ...[...groups].flatMap(([name, results]) => compareGroup(name, results, data, act)), ...compareBatches(groups, data),
      ...missing.map((id) => make("p", { className: "note" }, `${id}: there is no such result with a score; `,
        act("remove", id, () => act.choose(act.chosen().filter((other) => other !== id))))));
    showDifferences();
    readDetails(list());
    find();
    cue();
  }

  function showDifferences() {
    const facts = listDifferences(list(), "facts");
    const parts = [...group()].filter(([, results]) => results.length > 1).map(([name, results]) => {
      const plots = overlay(results);
      return [name, [...listDifferences(results, "hyperparameters"), ...(plots.length ? [make("div", { className: "panels" }, ...plots)] : [])]];
    });
    more.replaceChildren(...(facts.length ? [node("h2", "Differences between the systems"), ...facts] : []),
      ...parts.filter(([, shown]) => shown.length).flatMap(([name, shown]) => [node("h2", `Hyperparameters and quality: ${name}`), ...shown]));
  }

  whenRead = showDifferences;
  form.elements.find.addEventListener("input", find);
  show();
}

if (document.getElementById("compare")) showComparison();
