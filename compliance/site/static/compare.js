// Compare results: ratios with intervals as compliance/score/comparison.py computes them, and what differs.
"use strict";

// ---- comparing, as compliance/score/comparison.py does it

const digits = (value) => (Math.abs(value - 1) < 0.005 ? value.toFixed(4) : value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1)
  : Math.round(value).toLocaleString("en-US"));

function ratio(fast, slow, student) {
  const middle = slow.mean - fast.mean, runs = [fast.runs, slow.runs];
  if (fast.variance === null || slow.variance === null) return { value: Math.exp(middle), low: null, high: null, runs };
  const total = fast.variance + slow.variance;
  const shares = total > 0 && (fast.variance / total) ** 2 / fast.degrees + (slow.variance / total) ** 2 / slow.degrees;
  const degrees = total > 0 ? Math.max(1, Math.floor(1 / shares + 1e-9)) : fast.degrees + slow.degrees;
  const half = student[Math.min(degrees, student.length) - 1] * Math.sqrt(total);
  return { value: Math.exp(middle), low: Math.exp(middle - half), high: Math.exp(middle + half), runs };
}

function sentence(first, second, found) {
  const runs = found.runs.join(" and ");
  if (found.low === null) {
    return `${first} against ${second}: ratio ${digits(found.value)}; ${runs} runs are too few for an interval, no difference can be claimed.`;
  }
  if (found.low <= 1 && found.high >= 1) {
    return `No difference between ${first} and ${second} can be claimed from ${runs} runs: ratio ${digits(found.value)}, 95% interval ${digits(found.low)}–${digits(found.high)}.`;
  }
  if (found.value < 1) {
    return sentence(second, first, { value: 1 / found.value, low: 1 / found.high, high: 1 / found.low, runs: [...found.runs].reverse() });
  }
  return `${first} is ${digits(found.value)}× faster than ${second}, 95% interval ${digits(found.low)}–${digits(found.high)} (${runs} runs).`;
}


// Ratios with their intervals around the line of 1: by result, and where batch sizes match, against batch size.
function plotted(title, xLabel, points) {
  const [width, height, left, right, top, bottom] = [480, 300, 62, 466, 12, 254];
  const ends = points.flatMap((point) => [point.low ?? point.value, point.high ?? point.value, 1]);
  const low = Math.log(Math.min(...ends)) - 0.1, high = Math.log(Math.max(...ends)) + 0.1;
  const y = (value) => bottom - (bottom - top) * (Math.log(value) - low) / (high - low);
  const labels = [...new Set(points.map((point) => point.label))];
  const x = (label) => left + (right - left) * (labels.indexOf(label) + 0.5) / labels.length;
  const ticks = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000]
    .filter((tick) => Math.log(tick) >= low && Math.log(tick) <= high);
  const text = (content, properties) => drawing("text", properties, content);
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}; the numbers are in the table beneath` },
    drawing("g", { class: "grid" }, ...ticks.map((tick) => drawing("line", { x1: left, x2: right, y1: y(tick), y2: y(tick) }))),
    ...ticks.map((tick) => text(`${tick}`, { x: left - 6, y: y(tick) + 4, "text-anchor": "end" })),
    drawing("line", { class: "guide", x1: left, x2: right, y1: y(1), y2: y(1) }),
    ...labels.map((label) => text(label.length > 18 ? `${label.slice(0, 17)}…` : label, { x: x(label), y: bottom + 16, "text-anchor": "middle" })),
    text(xLabel, { class: "label", x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }),
    text("speed ratio", { class: "label", transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }),
    ...points.map((point) => drawing("g", { class: `c${point.colour}` },
      ...(point.low === null ? [] : [drawing("line", { class: "ends", x1: x(point.label), x2: x(point.label), y1: y(point.low), y2: y(point.high) })]),
      drawing("circle", { cx: x(point.label), cy: y(point.value), r: 3.8 },
        drawing("title", {}, `${point.name}: ${digits(point.value)}`)))));
  const row = (kind, cells) => make("tr", {}, ...cells.map((cell) => make(kind, kind === "th" ? { scope: "col" } : {}, cell)));
  const numbers = points.map((point) => row("td", [point.label, point.name, digits(point.value),
    point.low === null ? "too few runs" : `${digits(point.low)}–${digits(point.high)}`]));
  return make("figure", { className: "plot" }, make("figcaption", {}, make("b", {}, title)), svg,
    make("details", {}, make("summary", {}, "the numbers"), make("table", { className: "plain" },
      make("thead", {}, row("th", [xLabel, "of", "speed ratio", "95% interval"])), make("tbody", {}, ...numbers))));
}

function showComparison() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(data.results.map((result) => [result.id, result]));
  const area = document.getElementById("comparison"), found = document.getElementById("found");
  const form = document.querySelector("#compare form");
  document.getElementById("compare").hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  const chosen = () => state.getAll("r");
  const choose = (ids) => {
    state.delete("r");
    for (const id of new Set(ids)) state.append("r", id);
    keep();
    show();
  };
  const button = (label, name, act) => {
    const made = make("button", { type: "button", ariaLabel: `${label} ${name}` }, label);
    made.addEventListener("click", act);
    return made;
  };
  const told = (result) => `${result.group}, ${result.division}: ${result.name}, ${result.hardware}${result.batch ? `, batch size ${result.batch}` : ""}, ${result.score}`;

  function find() {
    const words = form.elements.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const groups = new Set(chosen().map((id) => byId.get(id)?.group));
    const matches = data.results.filter((result) => !chosen().includes(result.id)
      && words.every((word) => told(result).toLowerCase().includes(word)))
      .sort((a, b) => groups.has(b.group) - groups.has(a.group));
    form.querySelector("output").value = matches.length > 12 ? `12 of ${matches.length}` : "";
    found.replaceChildren(...matches.slice(0, 12).map((result) => make("li", {}, make("span", {}, told(result)),
      button("add", result.name, () => choose([...chosen(), result.id])))));
  }

  function group(name, results) {
    const [first, ...others] = results;
    const items = results.map((result, number) => make("li", {},
      make("span", {}, number ? "" : make("b", {}, "compared with: "),
        make("a", { href: `results/${result.id.split("/").map(encodeURIComponent).join("/")}.html` }, result.name),
        ` ${result.division}, ${result.hardware}${result.batch ? `, batch size ${result.batch}` : ""}, ${result.score}`),
      ...(number ? [button("compare with this", result.name, () => choose([result.id, ...chosen()]))] : []),
      button("remove", result.name, () => choose(chosen().filter((id) => id !== result.id)))));
    const parts = [make("h2", {}, name), make("ul", { className: "chosen" }, ...items)];
    if (!others.length) return [...parts, make("p", { className: "muted" }, "Add a second result of this benchmark and scale.")];
    const ratios = others.map((other) => ratio(other, first, data.student));
    parts.push(...others.map((other, i) => make("p", { className: "sentence" }, sentence(other.name, first.name, ratios[i])
      + (other.division === first.division ? "" : " They are of different divisions: not the same mathematics."))));
    const points = others.map((other, i) => ({ ...ratios[i], name: other.name, label: other.name.split("/").pop(), colour: i % 8 }));
    const panels = [plotted(`Speed over ${first.name}, 95% intervals`, "result", points)];
    const machine = (result) => `${result.machine}, ${result.framework}`;
    const mine = results.filter((result) => machine(result) === machine(first) && result.batch);
    const machines = [...new Set(others.filter((other) => machine(other) !== machine(first)).map(machine))];
    const pairs = mine.flatMap((base) => others.filter((other) => machines.includes(machine(other)) && other.batch === base.batch)
      .map((other) => ({ ...ratio(other, base, data.student), name: machine(other), label: `${base.batch}`, colour: machines.indexOf(machine(other)) % 8 })));
    pairs.sort((a, b) => Number(a.label) - Number(b.label));
    if (pairs.length) panels.push(plotted(`Speed over ${machine(first)} at the same batch size`, "global batch size", pairs));
    parts.push(make("div", { className: "panels" }, ...panels));
    return parts;
  }

  function show() {
    const groups = new Map();
    for (const result of chosen().map((id) => byId.get(id)).filter(Boolean)) {
      groups.set(result.group, [...(groups.get(result.group) ?? []), result]);
    }
    const missing = chosen().filter((id) => !byId.has(id));
    area.replaceChildren(...[...groups].flatMap(([name, results]) => group(name, results)),
      ...missing.map((id) => make("p", { className: "note" }, `${id}: there is no such result with a score; `,
        button("remove", id, () => choose(chosen().filter((other) => other !== id))))));
    find();
  }
  form.elements.find.addEventListener("input", find);
  show();
}

if (document.getElementById("compare")) showComparison();
