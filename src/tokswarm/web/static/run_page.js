// The page of one run: how it ended, its curve, its seconds, its files. Follows the run while it goes on.

import * as api from "./api.js";
import { Chart, ticksAt } from "./chart.js";
import { fill, h } from "./dom.js";
import { EventList } from "./event_list.js";
import { compact, perSecond, timeOfDay, words } from "./format.js";
import { LiveFeed } from "./live.js";
import { LoadForm } from "./load_form.js";
import { Panels } from "./panels.js";
import { problemBox } from "./problem_box.js";
import { isOver, RunState } from "./run_state.js";
import { ALL, Series } from "./series.js";
import { StageTable } from "./stage_table.js";
import { Tiles } from "./tiles.js";

const FILES = [
  ["curve.html", "Curve page", "the curves with all percentiles; opens from a disk as well"],
  ["summary.json", "Summary", "every figure of this page, as JSON"],
  ["requests.parquet", "Requests", "one row a request, as Parquet"],
];

const SPANS_SHOWN = 5;

export class RunPage {
  #detail = null;
  #series;

  constructor(main, connection, runId) {
    this.runId = runId;
    this.main = main;
    this.#series = new Series(runId, ALL);
    this.state = new RunState();
    this.tiles = new Tiles();
    this.panels = new Panels();
    this.events = new EventList();
    this.stages = new StageTable();
    this.load = new LoadForm(runId);
    this.curve = new Chart({
      title: "Output against requests in flight",
      about: "and what linear scaling would bring",
      series: [
        { label: "linear", tone: 6, faint: true },
        { label: "measured", tone: 1 },
      ],
      format: perSecond("tok"),
      formatX: compact,
      ticksX: (...range) => ticksAt(this.#sweep().map((stage) => stage.concurrency))(...range),
      breakAt: Infinity,
      dots: true,
    });
    this.classes = h("select", { id: "class", on: { change: () => this.#chooseClass() } });
    this.report = h("section", { class: "card", hidden: true });
    this.files = h("ul", { class: "files" });
    this.mix = h("pre", { tabindex: "0" });
    this.feed = null;
    this.connection = connection;
    this.#build();
    this.#load();
  }

  #build() {
    this.verdict = h("div", {});
    this.report.append(
      h("h2", {}, "The curve"),
      this.verdict,
      h("div", { class: "line" }, h("label", { for: "class" }, "Traffic class"), this.classes),
      this.curve.element,
      this.stages.element,
    );
    this.filesCard = card("Files", this.files);
    this.content = h(
      "div",
      { class: "stack" },
      h("section", { class: "card" }, h("p", {}, h("a", { href: "/#runs" }, "All runs")), this.state.element, this.load.element, this.tiles.element),
      this.report,
      h("section", { "aria-label": "Charts over time" }, this.panels.element),
      card("Events", this.events.element),
      this.filesCard,
      card("Mix", this.mix),
    );
  }

  async #load() {
    try {
      const id = this.runId;
      const [detail, seconds, server] = await Promise.all([api.run(id), api.seconds(id, this.#series.className), api.server(id)]);
      this.#detail = detail;
      this.#series.add(seconds);
      this.#series.addServer(server);
    } catch (problem) {
      const home = h("p", {}, h("a", { href: "/" }, "To all runs"));
      fill(this.main, h("section", { class: "card" }, h("h1", {}, "Not found"), problemBox(problem), home));
      return;
    }
    if (!this.content.isConnected) fill(this.main, h("h1", {}, this.#detail.info.run_id), this.content);
    document.title = `${this.#detail.info.mix_name} · tokswarm`;
    this.#drawDetail();
    this.#draw();
    if (!isOver(this.#detail.info) && this.feed === null) this.#listen();
  }

  #listen() {
    this.feed = new LiveFeed({
      onTick: (tick) => this.#tick(tick),
      onGap: () => this.#load(),
      onStatus: this.connection,
    });
  }

  #tick(tick) {
    if (tick.run?.run_id !== this.runId || this.#detail === null) return;
    const justEnded = isOver(tick.run) && !isOver(this.#detail.info);
    this.#detail.info = tick.run;
    this.#series.add(tick.seconds);
    this.#series.addServer(tick.server);
    this.events.add(tick.events);
    this.#draw();
    if (justEnded) this.#load();
  }

  async #chooseClass() {
    const series = new Series(this.runId, this.classes.value);
    this.#series = series;
    this.#drawReport();
    try {
      series.add(await api.seconds(this.runId, series.className));
      series.addServer(await api.server(this.runId));
    } catch (problem) {
      fill(this.verdict, problemBox(problem));
    }
    if (series === this.#series) this.#draw();
  }

  #draw() {
    this.state.update(this.#detail.info, { link: false });
    this.load.update(this.#detail.info);
    this.tiles.element.hidden = isOver(this.#detail.info);
    this.tiles.update(this.#series);
    this.panels.update(this.#series);
  }

  #drawDetail() {
    const { info, summary, events, mix_yaml: text } = this.#detail;
    this.events.add(events);
    fill(this.mix, text);
    this.report.hidden = summary === null;
    fill(
      this.files,
      ...FILES.map(([name, title, about]) =>
        h("li", {}, h("a", { href: api.fileUrl(info.run_id, name), target: name.endsWith(".html") ? "_blank" : null }, title), ` ${about}`),
      ),
      info.run_dir && h("li", {}, "On the master's disk: ", h("code", {}, info.run_dir)),
    );
    this.filesCard.hidden = summary === null;
    if (summary === null) return;
    const names = new Set((summary.stages ?? []).flatMap((stage) => Object.keys(stage.classes ?? {})));
    const chosen = this.classes.value || ALL;
    fill(
      this.classes,
      h("option", { value: ALL }, "all together"),
      ...[...names].map((name) => h("option", { value: name }, name)),
    );
    this.classes.value = chosen;
    this.#drawReport();
  }

  #className() {
    return this.classes.value === ALL ? null : this.classes.value;
  }

  /** Closed-loop stages that count, by concurrency. */
  #sweep() {
    const stages = this.#detail?.summary?.stages ?? [];
    const counted = stages.filter((stage) => stage.concurrency !== null && !stage.warmup);
    return counted.toSorted((a, b) => a.concurrency - b.concurrency);
  }

  #drawReport() {
    const { summary } = this.#detail;
    const name = this.#className();
    this.stages.update(summary.stages ?? [], name);
    fill(this.verdict, verdictBox(summary.verdict), summary.missing?.length > 0 && h("p", { class: "problem" }, `Missing: ${summary.missing.join("; ")}`));
    const points = this.#sweep().map((stage) => {
      const figures = name === null ? stage : (stage.classes?.[name] ?? {});
      return { x: stage.concurrency, values: [null, figures.output_tok_per_s ?? null] };
    });
    const lowest = points.find((point) => point.values[1] !== null);
    if (lowest) for (const point of points) point.values[0] = (lowest.values[1] / lowest.x) * point.x;
    this.curve.element.hidden = points.length < 2;
    this.curve.update(points, { empty: "No stage with a fixed number in flight." });
  }
}

function verdictBox(verdict) {
  if (!verdict) return null;
  const said = {
    valid: "Valid: nothing in the generator puts these numbers in doubt.",
    suspect: "Suspect: read these numbers with the reasons in mind.",
    invalid: "Invalid: these numbers do not describe the endpoint.",
  };
  const reasons = verdict.reasons.map((reason) => h("li", {}, reason.text, h("small", {}, ` ${where(reason)}`)));
  return h(
    "div",
    { class: `verdict ${verdict.state}` },
    h("strong", {}, said[verdict.state] ?? words(verdict.state)),
    reasons.length > 0 && h("ul", {}, ...reasons),
  );
}

/** The stages and seconds a reason is about. */
function where({ stages, seconds }) {
  const spans = seconds.slice(0, SPANS_SHOWN).map(([first, last]) => {
    const from = timeOfDay(first * 1e9);
    return first === last ? from : `${from} to ${timeOfDay(last * 1e9)}`;
  });
  if (seconds.length > SPANS_SHOWN) spans.push(`and ${seconds.length - SPANS_SHOWN} more spans`);
  return [stages.join(", "), spans.join(", ")].filter(Boolean).join("; ");
}

function card(title, content) {
  return h("section", { class: "card" }, h("h2", {}, title), content);
}
