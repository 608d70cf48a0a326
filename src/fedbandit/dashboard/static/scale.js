// Round numbers for axes, and numbers and times as short text.

/** About `n` round values that span low to high. */
export function ticks(low, high, n) {
  const raw = (high - low) / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000];

/** Round moments between two times in seconds, with their names in the visitor's own time zone. */
export function timeTicks(first, last, n) {
  const step = STEPS.find((s) => (last - first) / s <= n) ?? STEPS.at(-1) * Math.ceil((last - first) / STEPS.at(-1) / n);
  const offset = new Date(first * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((first - offset) / step) * step + offset; at <= last; at += step) {
    found.push({ value: at, name: step >= 86400 ? day(at) : clock(at, step < 60) });
  }
  return found;
}

/** A time of day, with its date if wanted. */
export function clock(at, withSeconds, withDate = false) {
  if (withDate) return `${day(at)}, ${clock(at, withSeconds)}`;
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(withSeconds ? { second: "2-digit" } : {}) };
  return new Date(at * 1000).toLocaleTimeString("en-GB", options);
}

function day(at) {
  return new Date(at * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

/** A number in few characters, with a real minus sign. */
export function shortNumber(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (size >= 1e9) text = `${trim(value / 1e9, digits)} G`;
  else if (size >= 1e6) text = `${trim(value / 1e6, digits)} M`;
  else if (size >= 1e3) text = Math.round(value).toLocaleString("en-US");
  else if (size > 0 && size < 1e-4) text = value.toExponential(1);
  else text = trim(value, digits);
  return text.replace("-", "−");
}

function trim(value, digits) {
  return String(Number(value.toPrecision(digits)));
}
