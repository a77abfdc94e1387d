// What a run costs: a price list that the reader writes, kept in the address; time against cost.
"use strict";

const prices = document.querySelector("form.prices");
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

// Time against cost, with the line of the results that no other beats in both.
function plotCosts(points) {
  const series = points.map(({ row, minutes, cost }) => {
    const { id, device, colour, shape } = row.dataset, label = row.querySelector("a").textContent;
    return { label, short: label, key: id, legend: device, colour, shape, line: "none", mark: "dot", points: [[minutes, cost]] };
  });
  const title = "Cost of a run against its time", figure = make("figure", { className: "plot" }, make("figcaption", {}, make("b", {}, title)));
  showChart(figure, { x: { label: "minutes", ticks: [] }, y: { label: "cost of a run", ticks: [] }, series, guides: [], front: "no other is faster and cheaper" }, title);
  return figure;
}

if (prices) {
  prices.hidden = false;
  prices.addEventListener("submit", (event) => event.preventDefault());
  for (const field of prices.elements) {
    field.value = state.get(`price ${field.name}`) ?? "";
    field.addEventListener("input", () => { put(`price ${field.name}`, field.value); showCosts(); });
  }
  showCosts();
}
