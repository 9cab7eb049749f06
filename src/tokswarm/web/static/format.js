// Numbers as people read them, always with their unit. Absent (null) is a dash, never a zero.

export const ABSENT = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

const absent = (value) => value === null || value === undefined;

/** Digits that matter: three of them below 100, whole numbers above. */
function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return whole.format(value);
  return value.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "");
}

export const count = (value) => (absent(value) ? ABSENT : whole.format(value));
export const compact = (value) => (absent(value) ? ABSENT : Math.abs(value) < 10_000 ? digits(value) : short.format(value));
export const number = (value) => (absent(value) ? ABSENT : digits(value));
export const perSecond = (what) => (value) => (absent(value) ? ABSENT : `${compact(value)} ${what}/s`);
export const percent = (ratio) => (absent(ratio) ? ABSENT : `${digits(Math.round(ratio * 1000) / 10)} %`);

/** Milliseconds, from a second on as seconds. */
export function ms(value) {
  if (absent(value)) return ABSENT;
  return Math.abs(value) < 1000 ? `${digits(value)} ms` : `${digits(value / 1000)} s`;
}

export function bytes(value) {
  if (absent(value)) return ABSENT;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  let rest = value;
  while (rest >= 1024 && place < units.length - 1) {
    rest /= 1024;
    place += 1;
  }
  return `${digits(rest)} ${units[place]}`;
}

/** Seconds as `45 s`, `2 min 5 s`, `1 h 4 min`. */
export function duration(seconds) {
  if (absent(seconds)) return ABSENT;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  const [min, rest] = [Math.floor(s / 60), s % 60];
  if (min < 60) return rest ? `${min} min ${rest} s` : `${min} min`;
  return min % 60 ? `${Math.floor(min / 60)} h ${min % 60} min` : `${Math.floor(min / 60)} h`;
}

/** Elapsed seconds as m:ss, for axes. */
export function elapsed(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const tail = String(s % 60).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)}:${tail}`;
  return `${Math.floor(s / 3600)}:${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}:${tail}`;
}

const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export const dateTime = (unixNs) => (absent(unixNs) ? ABSENT : day.format(unixNs / 1e6));
export const timeOfDay = (unixNs) => (absent(unixNs) ? ABSENT : clock.format(unixNs / 1e6));

/** `rate_limited` as `rate limited`. */
export const words = (name) => name.replaceAll("_", " ");
