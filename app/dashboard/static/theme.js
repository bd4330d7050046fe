// Before anything is drawn, so that no page flashes in the other colours.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("stillframe-theme"); } catch { /* a browser that keeps nothing */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
