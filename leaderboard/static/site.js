// What pages cannot do by themselves: sort, filter, choose columns, highlight, keep that in the address,
// save what is shown. Everything is in the page already; nothing is fetched. costs.js and compare.js
// use what is defined here.
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
const rowsOf = (table) => table.order ?? [...table.tBodies[0].rows]; // as they are sorted
const raw = (cell) => cell.dataset.value ?? cell.dataset.text ?? cell.textContent.trim();

const byWords = new Intl.Collator("en", { numeric: true }).compare;

function sort(table, name, turned) {
  const column = heads(table).findIndex((head) => key(head) === name);
  if (column < 0) return;
  for (const head of heads(table)) head.removeAttribute("aria-sort");
  heads(table)[column].setAttribute("aria-sort", turned ? "descending" : "ascending");
  const compare = (a, b) => {
    if (a.text === "" || b.text === "") return (a.text === "") - (b.text === ""); // nothing stays last
    const order = Number.isNaN(a.number) || Number.isNaN(b.number) ? byWords(a.text, b.text) : a.number - b.number;
    return turned ? -order : order;
  };
  const rows = rowsOf(table).map((row) => {
    const text = raw(row.cells[column]);
    return { text, number: Number(text), row };
  });
  table.order = rows.sort(compare).map((one) => one.row);
  turnPages(table);
}

// Of a long table the first rows that match are laid out, all of them on request and on paper: a browser takes
// a second for thousands. Sorting, filters and what is saved act on all rows; only those that are seen move.
const ROWS_AT_ONCE = 50, ROWS_MANY = 100;

function turnPages(table) {
  const matching = rowsOf(table).filter((row) => !row.hidden);
  const shown = state.get("rows") === "all" || matching.length <= ROWS_MANY ? matching.length : ROWS_AT_ONCE;
  matching.forEach((row, place) => row.classList.toggle("later", place >= shown));
  if (shown < matching.length) table.tBodies[0].prepend(...matching.slice(0, shown));
  else putInOrder(table);
  const area = table.closest(".scroll");
  let more = table.pageLine;
  if (!more) {
    if (shown === matching.length) return;
    const button = make("button", { type: "button" });
    button.addEventListener("click", () => { put("rows", "all"); tables.forEach(turnPages); area.focus(); });
    more = table.pageLine = make("p", { className: "pages" }, make("span", {}), button);
    (area.nextElementSibling?.matches(".cue") ? area.nextElementSibling : area).after(more);
  }
  more.hidden = shown === matching.length;
  more.firstChild.textContent = `The first ${shown} of ${matching.length} rows are shown. `;
  more.lastChild.textContent = `show all ${matching.length}`;
}

function putInOrder(table) {
  if (table.order) table.tBodies[0].append(...table.order);
}

function sortAll(by) {
  put("sort", by);
  for (const table of tables) sort(table, by.replace(/^-/, ""), by.startsWith("-"));
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
const FILTERS = ["q", "accelerator", "least", "most", "availability"];

function filter() {
  const words = (state.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = ["accelerator", "availability"].filter((name) => state.get(name));
  const least = Number(state.get("least") || 0), most = Number(state.get("most") || Infinity);
  const matches = (row) => words.every((word) => visible(row).includes(word))
    && chosen.every((name) => row.dataset[name] === state.get(name))
    && row.dataset.devices >= least && row.dataset.devices <= most;
  let shown = 0, all = 0;
  const seen = new Map(); // by result, for the plots
  for (const table of [...tables, ...rankings]) {
    for (const row of [...table.tBodies].flatMap((body) => [...body.rows])) {
      row.hidden = !(table.dataset.table === "more" ? seen.get(row.dataset.id) ?? matches(row) : matches(row));
      seen.set(row.dataset.id, !row.hidden);
      if (table.dataset.table === "") { shown += !row.hidden; all += 1; }
    }
  }
  tables.forEach(turnPages);
  for (const part of document.querySelectorAll("[data-of]")) part.classList.toggle("out", listResults(part).every((id) => seen.get(id) === false));
  const filtered = FILTERS.some((name) => state.get(name));
  for (const folded of document.querySelectorAll(".folded")) folded.hidden = !folded.dataset.open && !filtered;
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
  const whole = (table) => rowsOf(table).filter((row) => !row.hidden)
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
  for (const name of FILTERS) {
    const field = controls.elements[name];
    field.value = state.get(name) ?? "";
    field.addEventListener("input", () => { put(name, field.value); filter(); });
  }
  const sorter = controls.elements.sort; // headers are not there on a narrow screen
  sorter.addEventListener("input", () => sortAll(sorter.value));
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
      const button = head.querySelector("button");
      if (!button) continue;
      const best = ("more" in head.dataset ? "-" : "") + key(head); // the best first
      if (![...sorter.options].some((option) => option.value === best)) sorter.add(new Option(button.textContent, best));
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const turned = before ? before === "ascending" : best.startsWith("-");
        sortAll((turned ? "-" : "") + key(head));
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
  sorter.value = state.get("sort") ?? "";
  if (state.get("sort")) sortAll(state.get("sort"));
  columns();
  filter();
  count();
}

// ---- plots: what belongs to one result stands out together

// Results of one machine on several numbers of devices share a line.
const listResults = (part) => (part.dataset.of ?? part.dataset.id).split(" ");

function highlight() {
  const light = (event) => {
    const part = event.target.closest?.("[data-of], tr[data-id]");
    const ids = part && (event.type === "pointerover" || event.type === "focusin") ? listResults(part) : [];
    for (const other of document.querySelectorAll("[data-of]")) other.classList.toggle("lit", listResults(other).some((id) => ids.includes(id)));
    for (const figure of document.querySelectorAll("figure.plot")) figure.classList.toggle("lit", figure.querySelector(".lit") !== null);
  };
  for (const name of ["pointerover", "pointerleave", "focusin", "focusout"]) document.addEventListener(name, light);
}

// A line of text wherever a table is wider than its place.
function cue() {
  for (const area of document.querySelectorAll(".scroll")) {
    const wide = area.scrollWidth > area.clientWidth + 1;
    if (wide && !area.nextElementSibling?.matches(".cue")) area.after(make("p", { className: "cue" }, "scroll sideways for more columns →"));
    if (!wide && area.nextElementSibling?.matches(".cue")) area.nextElementSibling.remove();
  }
}

function drawing(name, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [property, value] of Object.entries(properties)) made.setAttribute(property, value);
  made.append(...children);
  return made;
}

// Round values of a logarithmic axis.
function ticks(low, high) {
  const found = (steps) => {
    const values = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const step of steps) if (step * 10 ** power >= low && step * 10 ** power <= high) values.push(Number((step * 10 ** power).toPrecision(3)));
    }
    return values;
  };
  return [[1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 2.2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9, 9.5], [1, 1.2, 1.5, 2, 3, 5, 7], [1, 2, 5], [1], [1]]
    .map(found).find((values, place) => values.length <= 7 || place === 4);
}

if (tables.length && controls) showTables();
addEventListener("beforeprint", () => tables.forEach(putInOrder));
highlight();
cue();
addEventListener("resize", cue);
