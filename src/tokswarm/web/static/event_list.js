// What happened in a run, newest first.

import { fill, h } from "./dom.js";
import { timeOfDay } from "./format.js";

const KEPT = 200;

export class EventList {
  #events = new Map();

  constructor() {
    this.list = h("ol", { class: "events" });
    this.empty = h("p", { class: "empty" }, "Nothing has happened yet. Stages, lost workers and trouble with the database are told here.");
    this.element = h("div", {}, this.empty, this.list);
  }

  clear() {
    this.#events.clear();
    this.add([]);
  }

  add(events) {
    for (const event of events) this.#events.set(`${event.unix_ns} ${event.kind} ${event.title}`, event);
    const all = [...this.#events.values()].sort((a, b) => b.unix_ns - a.unix_ns);
    this.empty.hidden = all.length > 0;
    const older = all.length - KEPT;
    fill(
      this.list,
      ...all.slice(0, KEPT).map((event) => h("li", {}, h("time", {}, timeOfDay(event.unix_ns)), h("b", {}, event.title), h("span", {}, event.text))),
      older > 0 && h("li", {}, `and ${older} earlier`),
    );
  }
}
