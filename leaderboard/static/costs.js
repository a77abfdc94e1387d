// What a run costs: a price list that the reader writes, kept in the address; time against cost.
"use strict";

const prices = [...document.querySelectorAll("form.prices")];
const byDevice = (name) => Number.parseFloat(state.get(`price ${name}`) ?? "");
const money = (value) => (value >= 100 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3));

function showCosts() {
  for (const cell of document.querySelectorAll("td[data-cost]")) {
    const { device, minutes, low, high, devices } = cell.parentElement.dataset;
    const find = (time) => (time ? (byDevice(device) * time * devices) / 60 : NaN), cost = find(minutes);
    cell.dataset.value = Number.isFinite(cost) ? cost : "";
    Object.assign(cell.dataset, Number.isFinite(find(low)) ? { low: find(low), high: find(high) } : {});
    cell.textContent = Number.isFinite(cost) ? money(cost) : "";
    if (Number.isFinite(find(low))) cell.append(make("span", { className: "muted" }, ` ${money(find(low))}–${money(find(high))}`));
  }
  for (const area of document.querySelectorAll(".pareto")) {
    const rows = [...area.parentElement.querySelectorAll('table[data-table="more"] tbody tr')];
    const points = rows.map((row) => ({ row, minutes: Number(row.dataset.minutes), cost: Number(row.querySelector("[data-cost]").dataset.value) }))
      .filter((point) => point.minutes > 0 && point.cost > 0);
    area.replaceChildren(...(points.length > 1 ? [plotCosts(points)] : []));
  }
  filter();
}

// Time against cost; the dotted line joins the results that no other beats in both.
function plotCosts(points) {
  const front = points.filter((one) => !points.some((other) => other.minutes <= one.minutes && other.cost <= one.cost && other !== one && (other.minutes < one.minutes || other.cost < one.cost)))
    .sort((a, b) => a.minutes - b.minutes);
  const stairs = front.flatMap((point, i) => [...(i ? [[point.minutes, front[i - 1].cost]] : []), [point.minutes, point.cost]]);
  const blank = { keys: [], ends: [], band: [] }, title = "Cost of a run against its time";
  const series = points.map(({ row, minutes, cost }) => ({ ...blank, label: row.querySelector("a").textContent, short: row.querySelector("a").textContent, key: row.dataset.id, legend: row.dataset.device,
    colour: row.dataset.colour, shape: row.dataset.shape, line: "none", mark: "dot", points: [[minutes, cost]] }));
  const line = { ...blank, label: "", short: "", legend: "no other is faster and cheaper", key: "", colour: 8, shape: "disc", line: "dashed", mark: "none", points: stairs };
  const figure = make("figure", { className: "plot" }, make("figcaption", {}, make("b", {}, title)));
  showChart(figure, { x: { label: "minutes", ticks: [] }, y: { label: "cost of a run", ticks: [] }, series: [line, ...series], guides: [] }, title);
  return figure;
}

for (const form of prices) {
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const field of form.elements) {
    field.value = state.get(`price ${field.name}`) ?? "";
    field.addEventListener("input", () => {
      put(`price ${field.name}`, field.value);
      for (const other of prices) for (const one of other.elements) if (one !== field && one.name === field.name) one.value = field.value;
      showCosts();
    });
  }
}
if (prices.length) showCosts();
