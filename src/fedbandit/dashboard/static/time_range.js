// The time range of all charts: a length up to now, or what was zoomed to. It is part of the address.
const LENGTHS = { "1h": 3600, "24h": 86400, "7d": 604800 };
const query = new URLSearchParams(location.search);
let range = query.get("range") in LENGTHS ? query.get("range") : "all";
let zoom = query.has("since") && query.has("until") ? [Number(query.get("since")), Number(query.get("until"))] : null;
if (zoom && !(zoom[0] < zoom[1])) zoom = null;
let changed = () => {};
let known = [0, 1]; // of the chart that was drawn last

/** First and last time that a chart with data between two times shows. */
export function span(first, last) {
  known = [first, Math.max(last, first + 1)];
  if (zoom) return zoom;
  return range === "all" ? known : [known[1] - LENGTHS[range], known[1]];
}

export function zoomTo(from, to) {
  if (to - from < 0.05) return; // of a model that is a second old
  zoom = [from, to];
  update();
}

export function zoomBy(factor, at, [from, to]) {
  const [first, last] = [at - (at - from) * factor, at + (to - at) * factor];
  if (first <= known[0] && last >= known[1]) resetZoom();
  else zoomTo(first, last);
}

export function resetZoom() {
  zoom = null;
  update();
}

function update() {
  const address = new URL(location.href);
  for (const name of ["range", "since", "until"]) address.searchParams.delete(name);
  if (range !== "all") address.searchParams.set("range", range);
  if (zoom) ["since", "until"].forEach((name, i) => address.searchParams.set(name, zoom[i].toFixed(3)));
  history.replaceState(null, "", address);
  show();
  changed();
}

function show() {
  for (const button of document.querySelectorAll("[data-range]")) {
    button.setAttribute("aria-pressed", String(!zoom && button.dataset.range === range));
  }
  document.getElementById("reset-zoom").hidden = !zoom;
}

/** Follow the buttons of a view, if it has any; `redraw` is called after each change. */
export function followRange(redraw) {
  const bar = document.querySelector(".ranges");
  if (!bar) return;
  changed = redraw;
  bar.hidden = false;
  bar.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.range) range = button.dataset.range;
    zoom = null;
    update();
  });
  // A file has what its chart shows: the range is added when it is asked for.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-ranged]");
    if (!link) return;
    const address = new URL(link.href);
    const [first, last] = span(...known);
    if (zoom || range !== "all") ["since", "until"].forEach((name, i) => address.searchParams.set(name, [first, last][i]));
    else address.search = "";
    link.href = address;
  });
  show();
}
