// Runs before the first paint, so that a chosen theme does not flash the other one.
"use strict";
try {
  const chosen = localStorage.getItem("fedbandit-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be switched off; the system's preference holds then.
}
