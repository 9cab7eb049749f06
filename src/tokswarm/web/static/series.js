// The seconds of one run and one class, in order, however they arrived: loaded, live, late or twice.

export const ALL = "_all";

const SUMMED = ["output_tok_per_s", "offered_per_s", "started_per_s", "in_flight", "dropped", "late"];

export class Series {
  #rows = new Map();
  #servers = new Map();
  #sorted = null;

  constructor(runId, className) {
    this.runId = runId;
    this.className = className;
  }

  add(seconds) {
    for (const second of seconds) {
      if (second.class_name === this.className) this.#rows.set(`${second.second_unix} ${second.stage}`, second);
    }
    this.#sorted = null;
  }

  /** What the servers said of themselves: the newest reading of each replica in each second. */
  addServer(readings) {
    for (const reading of readings) {
      const second = Math.floor(reading.unix_ns / 1e9);
      if (!this.#servers.has(second)) this.#servers.set(second, new Map());
      this.#servers.get(second).set(`${reading.target} ${reading.replica}`, reading);
    }
    this.#sorted = null;
  }

  /** One point a second, sorted. At a change of stages both have rows in one second: counts are added. */
  points() {
    if (this.#sorted === null) {
      const bySecond = new Map();
      for (const row of this.#rows.values()) {
        const before = bySecond.get(row.second_unix);
        bySecond.set(row.second_unix, before === undefined ? row : together(before, row));
      }
      this.#sorted = [...bySecond.values()]
        .map((point) => ({ ...point, ...allServers([...(this.#servers.get(point.second_unix)?.values() ?? [])]) }))
        .sort((a, b) => a.second_unix - b.second_unix);
    }
    return this.#sorted;
  }

  /** Where each stage begins: [{x, label}], x in seconds since the first point. */
  marks() {
    const points = this.points();
    const marks = [];
    let stage = null;
    for (const point of points) {
      if (point.stage !== stage) marks.push({ x: point.second_unix - points[0].second_unix, label: point.stage });
      stage = point.stage;
    }
    return marks;
  }

  /** Outcomes other than ok that happened, by name. */
  failures() {
    const seen = new Set();
    for (const row of this.#rows.values()) {
      for (const outcome of Object.keys(row.finished)) if (outcome !== "ok" && row.finished[outcome] > 0) seen.add(outcome);
    }
    return [...seen].sort();
  }
}

/** All replicas of one second: counts are added, of the others the worst is shown. */
function allServers(readings) {
  const known = (name) => readings.map((reading) => reading[name]).filter((value) => value !== null);
  const sum = (values) => (values.length === 0 ? null : values.reduce((total, value) => total + value, 0));
  const worst = (values) => (values.length === 0 ? null : Math.max(...values));
  return {
    server_running: sum(known("running")),
    server_waiting: sum(known("waiting")),
    server_kv_use_ratio: worst(known("kv_use_ratio")),
    server_queue_wait_mean_ms: worst(known("queue_wait_mean_ms")),
    server_queue_wait_p99_ms: worst(known("queue_wait_p99_ms")),
  };
}

function together(first, second) {
  const merged = { ...first };
  for (const [name, value] of Object.entries(second)) if (value !== null) merged[name] = value;
  for (const name of SUMMED) merged[name] = first[name] + second[name];
  merged.finished = { ...first.finished };
  for (const [outcome, n] of Object.entries(second.finished)) merged.finished[outcome] = (merged.finished[outcome] ?? 0) + n;
  return merged;
}
