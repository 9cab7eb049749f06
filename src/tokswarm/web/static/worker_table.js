// The fleet: each worker, what it does, and how it is itself.

import { fill, h } from "./dom.js";
import { bytes, count, ms, percent } from "./format.js";

const COLUMNS = [
  "Worker",
  "State",
  "Loop lag p99",
  "CPU (of one core)",
  "Schedule lag p99",
  "In flight (requests)",
  "Sockets",
  "Memory",
  "Record log",
  "To the database",
];

export class WorkerTable {
  constructor() {
    this.body = h("tbody", {});
    this.table = h(
      "table",
      { class: "stacked" },
      h("caption", { class: "hidden" }, "Workers of the fleet"),
      h("thead", {}, h("tr", {}, ...COLUMNS.map((name) => h("th", { scope: "col" }, name)))),
      this.body,
    );
    this.empty = h(
      "p",
      { class: "empty" },
      "No worker is connected, so no run can start. Start one on this machine or another: ",
      h("code", {}, "tokswarm worker --join …"),
    );
    this.element = h("div", { class: "scroll" }, this.empty, this.table);
    this.table.hidden = true;
    this.empty.hidden = true;
  }

  update(workers) {
    this.empty.hidden = workers.length > 0;
    this.table.hidden = workers.length === 0;
    fill(this.body, ...workers.map(row));
  }
}

function row({ worker, state, host, health }) {
  const cells = [
    [worker, h("small", {}, host)],
    [h("span", { class: `badge ${state}` }, state)],
    [ms(health?.loop_lag_p99_ms)],
    [percent(health?.cpu_ratio)],
    [ms(health?.schedule_lag_p99_ms)],
    [count(health?.in_flight)],
    [count(health?.sockets)],
    [bytes(health?.rss_bytes)],
    [bytes(health?.log_bytes), health?.log_lost > 0 && h("small", { class: "bad" }, `${count(health.log_lost)} records lost`)],
    health?.sink_error
      ? [h("span", { class: "bad" }, health.sink_error), h("small", {}, `${bytes(health.sink_backlog_bytes)} waiting in the log`)]
      : [health ? `${bytes(health.sink_backlog_bytes)} waiting` : "–"],
  ];
  return h(
    "tr",
    { data: { worker } },
    ...cells.map((cell, place) =>
      h("td", { class: place >= 2 && place <= 8 ? "number" : null, data: { label: COLUMNS[place] } }, ...cell.filter(Boolean)),
    ),
  );
}
