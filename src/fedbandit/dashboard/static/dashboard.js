// Keeps a view current: its parts are morphed in place, charts get new points, and memory use stays bounded.
import { Chart, addPoints } from "./chart.js";
import { followRange } from "./time_range.js";

const SILENCE_MS = 12000; // the server sends an event at least every 5 s
const RETRY_MS = 3000;
const HIDDEN_MS = 60000; // after this long in the background the connection is closed

const series = new Map();
const charts = [];
let source = null;
let lastEvent = 0;
let retryTimer = 0;
let hiddenTimer = 0;
let clockSkewS = 0; // server minus browser

const serverNow = () => Date.now() / 1000 + clockSkewS;

// -- times

function ago(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 2) return "just now";
  if (s < 120) return `${s} s ago`;
  if (s < 7200) return `${Math.round(s / 60)} min ago`;
  if (s < 172800) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}

function refreshTimes() {
  const now = serverNow();
  for (const time of document.querySelectorAll("time[data-at]")) {
    const text = ago(now - Number(time.dataset.at));
    if (time.textContent !== text) time.textContent = text;
  }
}

// -- parts: bring old nodes to the new content instead of replacing them, so that focus and selection survive

function morph(target, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  morphChildren(target, template.content);
}

function morphChildren(from, to) {
  const wanted = [...to.childNodes];
  wanted.forEach((node, i) => {
    const old = from.childNodes[i];
    if (!old) from.appendChild(node);
    else if (old.nodeName !== node.nodeName || old.id !== node.id) from.replaceChild(node, old);
    else morphNode(old, node);
  });
  while (from.childNodes.length > wanted.length) from.lastChild.remove();
}

function morphNode(old, node) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== node.nodeValue) old.nodeValue = node.nodeValue;
    return;
  }
  const keepsText = old.nodeName === "TIME" && old.dataset.at === node.dataset.at;
  for (const { name } of [...old.attributes]) {
    if (!node.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (!keepsText) morphChildren(old, node);
}

// -- the connection

function showConnection(state, word, message = "", link = null) {
  const badge = document.getElementById("connection");
  if (badge && badge.dataset.state !== state) {
    badge.dataset.state = state;
    document.getElementById("connection-text").textContent = word;
  }
  document.body.classList.toggle("stale", state === "lost");
  let bar = document.getElementById("failure");
  if (!message) {
    bar?.remove();
    return;
  }
  if (!bar) {
    bar = document.createElement("div");
    bar.id = "failure";
    bar.setAttribute("role", "alert");
    document.getElementById("main").before(bar);
  }
  if (bar.firstChild?.nodeValue === message) return;
  bar.replaceChildren(message);
  if (link) {
    const anchor = document.createElement("a");
    anchor.href = link.href;
    anchor.textContent = link.text;
    bar.append(" ", anchor);
  }
}

function connect() {
  const address = document.body.dataset.live;
  disconnect();
  if (!address) return;
  lastEvent = Date.now();
  source = new EventSource(address);
  source.addEventListener("update", (event) => applyUpdate(JSON.parse(event.data)));
  source.addEventListener("failure", (event) => {
    const failure = JSON.parse(event.data);
    disconnect();
    if (failure.error === "unauthenticated" || failure.error === "forbidden") signedOut();
    else if (failure.error === "unknown_model" || failure.error === "unknown_agent") {
      showConnection("lost", "not found", `No longer available: ${failure.message}.`, { href: "/", text: "All models" });
    } else connectionLost();
  });
  source.onerror = connectionLost;
}

function disconnect() {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
}

function signedOut() {
  const next = encodeURIComponent(location.pathname + location.search);
  showConnection("lost", "signed out", "You are signed out.", { href: `/login?next=${next}`, text: "Sign in again" });
}

function connectionLost() {
  const since = new Date(lastEvent).toLocaleTimeString();
  disconnect();
  showConnection("lost", "disconnected", `No connection to the server. Showing data from ${since}; retrying …`);
  retryTimer = setTimeout(retry, RETRY_MS);
}

async function retry() {
  try {
    // A redirect leads to the login: the token is no longer valid.
    const answer = await fetch(location.href, { redirect: "manual", headers: { Accept: "text/html" } });
    if (answer.type === "opaqueredirect") signedOut();
    else connect();
  } catch {
    retryTimer = setTimeout(retry, RETRY_MS);
  }
}

function applyUpdate(update) {
  lastEvent = Date.now();
  clockSkewS = update.now - Date.now() / 1000;
  showConnection("live", "live");
  if ((document.body.dataset.shape ?? "") !== update.shape) {
    location.reload(); // the view has other parts now: the first data came, or the last were removed
    return;
  }
  for (const [id, html] of Object.entries(update.parts ?? {})) {
    const target = document.getElementById(id);
    if (target) morph(target, html);
  }
  for (const [name, points] of Object.entries(update.series ?? {})) addPoints(series, name, points);
  for (const chart of charts) chart.draw(series, serverNow());
  refreshTimes();
}

function watchSilence() {
  if (source && Date.now() - lastEvent > SILENCE_MS) connectionLost();
}

// -- lists that are searched, sorted and paged without loading the document again

let searchTimer = 0;

async function swap(address, { push = true } = {}) {
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const { swap: id } = document.querySelector("form[data-swap]").dataset;
  const part = next.getElementById(id);
  if (!answer.ok || !part) {
    location.assign(address);
    return;
  }
  morph(document.getElementById(id), part.innerHTML);
  const sort = document.querySelector("form[data-swap] [name=sort]");
  if (sort) sort.value = next.querySelector("form[data-swap] [name=sort]").value;
  if (push) history.pushState(null, "", address);
  document.body.dataset.live = next.body.dataset.live ?? "";
  refreshTimes();
  connect();
}

function addressOf(form) {
  const address = new URL(form.action);
  for (const [name, value] of new FormData(form)) if (value) address.searchParams.set(name, value);
  return address.href;
}

function followLists() {
  const form = document.querySelector("form[data-swap]");
  if (!form) return;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(searchTimer);
    swap(addressOf(form));
  });
  form.addEventListener("input", () => {
    clearTimeout(searchTimer);
    searchTimer = setTimeout(() => swap(addressOf(form)), 250);
  });
  document.getElementById(form.dataset.swap).addEventListener("click", (event) => {
    const link = event.target.closest("a");
    const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button);
    if (!link || !plain || link.pathname !== location.pathname) return;
    event.preventDefault();
    swap(link.href);
  });
  addEventListener("popstate", () => swap(location.href, { push: false }));
}

// -- the theme

function followTheme() {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const current = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  const label = () => {
    button.textContent = current() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${current() === "dark" ? "light" : "dark"} theme`);
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = current() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("fedbandit-theme", next);
    } catch {
      // Without storage the choice lasts until the next load.
    }
    label();
  });
  system.addEventListener("change", label);
  label();
}

// -- start

for (const host of document.querySelectorAll("[data-chart]")) charts.push(new Chart(host));
const widths = new ResizeObserver(() => charts.forEach((chart) => chart.redraw()));
charts.forEach((chart) => widths.observe(chart.host));
followTheme();
followRange(() => charts.forEach((chart) => chart.redraw()));
followLists();
refreshTimes();
setInterval(refreshTimes, 1000);
setInterval(watchSilence, 1000);
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(disconnect, HIDDEN_MS);
  else if (!source) connect();
});
addEventListener("pagehide", disconnect);
addEventListener("pageshow", (event) => event.persisted && connect());
connect();
