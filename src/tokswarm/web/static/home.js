// The home page: start a run, watch it, stop it; workers; past runs.

import * as api from "./api.js";
import { h } from "./dom.js";
import { EventList } from "./event_list.js";
import { LiveFeed } from "./live.js";
import { Panels } from "./panels.js";
import { problemBox } from "./problem_box.js";
import { isOver, RunState } from "./run_state.js";
import { RunTable } from "./run_table.js";
import { ALL, Series } from "./series.js";
import { StartForm } from "./start_form.js";
import { Tiles } from "./tiles.js";
import { WorkerTable } from "./worker_table.js";

export class Home {
  #series = null;
  #run = null;

  constructor(main, connection) {
    this.form = new StartForm({ onStart: (run) => this.#started(run) });
    this.state = new RunState();
    this.tiles = new Tiles();
    this.panels = new Panels();
    this.events = new EventList();
    this.workers = new WorkerTable();
    this.runs = new RunTable();
    this.trouble = h("div", {});
    this.live = h("section", { class: "card", "aria-labelledby": "live-title", tabindex: "-1" });
    this.liveTitle = h("h2", { id: "live-title" }, "Live");
    this.live.append(this.liveTitle, this.state.element, this.tiles.element);
    this.charts = h("section", { "aria-label": "Charts of this run" }, this.panels.element);
    const form = h("section", { class: "card", "aria-labelledby": "start-title" }, h("h2", { id: "start-title" }, "Start a run"), this.form.element);
    this.split = h("div", { class: "split" }, form, this.live);
    main.append(
      h("h1", { class: "hidden" }, "tokswarm"),
      this.trouble,
      this.split,
      this.charts,
      section("workers", "Workers", this.workers.element),
      section("events", "Events", this.events.element),
      section("runs", "Runs", this.runs.element),
    );
    this.#draw();
    this.ready = this.form.load();
    this.feed = new LiveFeed({
      onTick: (tick) => this.#tick(tick),
      onGap: () => this.#reload(),
      onStatus: (connected) => connection(connected),
    });
    this.#reload();
  }

  #tick(tick) {
    this.workers.update(tick.workers);
    this.form.setFleet({ busy: tick.run !== null && !isOver(tick.run), workers: tick.workers.length });
    if (tick.run === null) return;
    if (this.#follow(tick.run)) this.#reload();
    this.#series.add(tick.seconds);
    this.#series.addServer(tick.server);
    this.events.add(tick.events);
    this.#draw();
  }

  #started(run) {
    this.#follow(run);
    this.#draw();
    this.live.focus();
  }

  /** Show this run from now on; true when it is another than before. */
  #follow(run) {
    const another = this.#run?.run_id !== run.run_id;
    if (another) {
      this.#series = new Series(run.run_id, ALL);
      this.events.clear();
    }
    this.#run = run;
    this.runs.set(run);
    return another;
  }

  /** Fetch what ticks do not bring: what was before them. */
  async #reload() {
    try {
      const [runs, workers] = await Promise.all([api.runs(), api.workers()]);
      this.runs.setAll(runs);
      this.workers.update(workers);
      this.form.setFleet({ busy: runs.length > 0 && !isOver(runs[0]), workers: workers.length });
      await this.ready;
      if (!this.form.loaded) await (this.ready = this.form.load());
      if (runs.length > 0) {
        this.form.prefer(runs[0].mix_name);
        this.#follow(runs[0]);
        const series = this.#series;
        const id = series.runId;
        const [seconds, server, detail] = await Promise.all([api.seconds(id, ALL), api.server(id), api.run(id)]);
        series.add(seconds);
        series.addServer(server);
        if (series === this.#series) this.events.add(detail.events);
      }
      this.trouble.replaceChildren();
      this.#draw();
    } catch (problem) {
      this.trouble.replaceChildren(problemBox(problem));
    }
  }

  #draw() {
    this.state.update(this.#run);
    // On a narrow screen what goes on comes before the form that cannot be used meanwhile.
    const over = this.#run !== null && isOver(this.#run);
    this.split.classList.toggle("active", this.#run !== null && !over);
    this.liveTitle.textContent = over ? "Last run" : "Live";
    this.tiles.element.hidden = over;
    this.charts.hidden = this.#series === null;
    this.tiles.update(this.#series);
    if (this.#series !== null) this.panels.update(this.#series);
  }
}

function section(id, title, content) {
  return h("section", { class: "card", id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), content);
}
