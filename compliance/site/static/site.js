// What pages cannot do by themselves: sort, filter, choose columns, keep that in the address, save what
// is shown, compare. Everything is in the page already; nothing is fetched.
"use strict";

const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : ""); // else a place in the page
addEventListener("hashchange", () => { if (location.hash.includes("=")) location.reload(); });
const keep = () => history.replaceState(null, "", `#${state}`);
const make = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const put = (key, value) => { value ? state.set(key, value) : state.delete(key); keep(); };

// ---- tables

const tables = [...document.querySelectorAll("table[data-table]")];
const controls = document.querySelector("form.controls:has(.columns)");
const heads = (table) => [...table.tHead.rows[0].cells];
const key = (head) => head.dataset.key;
const raw = (cell) => cell.dataset.value ?? cell.dataset.text ?? cell.textContent.trim();

const byWords = new Intl.Collator("en", { numeric: true }).compare;

function sort(table, name, turned) {
  const column = heads(table).findIndex((head) => key(head) === name);
  if (column < 0) return;
  for (const head of heads(table)) head.removeAttribute("aria-sort");
  heads(table)[column].setAttribute("aria-sort", turned ? "descending" : "ascending");
  const value = (row) => raw(row.cells[column]);
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // nothing stays last
    const [x, y] = [Number(a), Number(b)];
    const order = Number.isNaN(x) || Number.isNaN(y) ? byWords(a, b) : x - y;
    return turned ? -order : order;
  };
  const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
  rows.sort((a, b) => compare(a[0], b[0]));
  table.tBodies[0].append(...rows.map((pair) => pair[1]));
}

// What a reader sees of a row: neither titles of drawings nor what is folded away.
const seenWords = new Map();
function visible(row) {
  if (!seenWords.has(row)) {
    const walk = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walk.nextNode()) if (!walk.currentNode.parentElement.closest("title, details")) texts.push(walk.currentNode.data);
    seenWords.set(row, texts.join(" ").toLowerCase());
  }
  return seenWords.get(row);
}

const rankings = [...document.querySelectorAll("table.ranking")];

function filter() {
  const words = (state.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = ["accelerator", "availability"].filter((name) => state.get(name));
  const matches = (row) => words.every((word) => visible(row).includes(word))
    && chosen.every((name) => row.dataset[name] === state.get(name));
  let shown = 0, all = 0;
  for (const table of [...tables, ...rankings]) {
    for (const row of [...table.tBodies].flatMap((body) => [...body.rows])) {
      row.hidden = !matches(row);
      if (tables.includes(table)) { shown += !row.hidden; all += 1; }
    }
  }
  for (const folded of document.querySelectorAll(".folded")) folded.hidden = !folded.dataset.open && !words.length && !chosen.length;
  controls.querySelector("output").value = shown < all ? `${shown} of ${all} rows` : "";
}

function foldRankings() {
  for (const button of document.querySelectorAll("[data-unfold]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const folded = button.closest("section").querySelector(".folded");
      folded.dataset.open = "yes"; folded.hidden = false; button.hidden = true;
    });
  }
}

function columns() {
  const hidden = new Set((state.get("hide") ?? "").split(",").filter(Boolean));
  for (const table of tables) {
    const out = heads(table).map((head) => hidden.has(key(head)));
    for (const row of [table.tHead.rows[0], ...table.tBodies[0].rows]) {
      [...row.cells].forEach((cell, number) => { cell.hidden = out[number]; });
    }
  }
}

function saved(kind) {
  const seen = (cells) => [...cells].filter((cell) => !cell.hidden && !cell.classList.contains("pick") && key(cell) !== "pick");
  const names = (table) => seen(heads(table)).map((head) => key(head));
  const whole = (table) => [...table.tBodies[0].rows].filter((row) => !row.hidden)
    .map((row) => seen(row.cells).map((cell) => (cell.dataset.value === "" && cell.dataset.text) || raw(cell)));
  if (kind === "json") {
    const number = (text) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : text === "" ? null : text);
    const rows = tables.flatMap((table) => whole(table).map((row) => ({
      table: table.dataset.name, ...Object.fromEntries(names(table).map((name, i) => [name, number(row[i])])),
    })));
    return JSON.stringify(rows, null, 1);
  }
  const inert = (text) => (/^[=+\-@]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text); // no formula
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return tables.map((table) => [["table", ...names(table)], ...whole(table).map((row) => [table.dataset.name, ...row])])
    .map((lines) => lines.map((line) => line.map((text) => quoted(inert(text))).join(",")).join("\n")).join("\n\n") + "\n";
}

function save(kind) {
  const type = kind === "csv" ? "text/csv" : "application/json";
  const link = make("a", { href: URL.createObjectURL(new Blob([saved(kind)], { type })), download: `${tables[0].dataset.name}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function picked() {
  return [...document.querySelectorAll(".pick input:checked")].flatMap((box) => box.value.split(" "));
}

function showTables() {
  controls.hidden = false;
  foldRankings();
  for (const name of ["q", "accelerator", "availability"]) {
    const field = controls.elements[name];
    field.value = state.get(name) ?? "";
    field.addEventListener("input", () => { put(name, field.value); filter(); });
  }
  controls.addEventListener("submit", (event) => event.preventDefault());
  const menu = controls.querySelector(".columns"), close = () => { menu.open = false; };
  document.addEventListener("click", (event) => { if (!menu.contains(event.target)) close(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  const box = menu.querySelector("div"), seen = new Set();
  const hidden = new Set((state.get("hide") ?? "").split(",").filter(Boolean));
  for (const head of tables.flatMap(heads).filter((head) => key(head) !== "pick")) {
    if (seen.has(key(head))) continue;
    seen.add(key(head));
    const choice = make("input", { type: "checkbox", checked: !hidden.has(key(head)) });
    choice.addEventListener("change", () => {
      choice.checked ? hidden.delete(key(head)) : hidden.add(key(head));
      put("hide", [...hidden].join(","));
      columns();
    });
    box.append(make("label", {}, choice, ` ${head.querySelector("button")?.textContent ?? head.textContent}`));
  }
  for (const table of tables) {
    for (const head of heads(table)) {
      head.querySelector("button")?.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const turned = before ? before === "ascending" : "more" in head.dataset; // the best first
        put("sort", (turned ? "-" : "") + key(head));
        for (const other of tables) sort(other, key(head), turned);
      });
    }
  }
  for (const button of controls.querySelectorAll("[data-save]")) button.addEventListener("click", () => save(button.dataset.save));
  const compare = controls.querySelector("[data-compare]");
  const count = () => { compare.disabled = picked().length < 2; };
  document.addEventListener("change", count);
  compare.addEventListener("click", () => {
    const address = new URLSearchParams(picked().map((id) => ["r", id]));
    location.href = `${document.querySelector("nav a[href$='compare.html']").getAttribute("href")}#${address}`;
  });
  const by = state.get("sort");
  if (by) for (const table of tables) sort(table, by.replace(/^-/, ""), by.startsWith("-"));
  columns();
  filter();
  count();
}

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

function drawing(name, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [property, value] of Object.entries(properties)) made.setAttribute(property, value);
  made.append(...children);
  return made;
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

if (tables.length && controls) showTables();
if (document.getElementById("compare")) showComparison();
