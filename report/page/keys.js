"use strict";
// keys are the shortcuts of the page, and the list of them that "?" shows.
const keys = (() => {
  const list = [
    ["?", "this list"],
    ["1 … 6", "a tab"],
    ["j, k", "the next and the previous run of the list"],
    ["x", "draw the run, or take it away (space does the same)"],
    ["o", "draw only this run"],
    ["[, ]", "average over fewer or more steps"],
    ["r", "show all steps again"],
    ["g", "logarithmic axis of steps"],
    ["t", "light, dark, or as the system says"],
    ["← →", "in a chart: move the cursor (with Shift: far)"],
    ["Home, End", "in a chart: the first and the last step"],
    ["+ − 0", "in a chart: zoom in, out, and back"],
    ["l", "in a chart: logarithmic axis of values"],
  ];

  let dialog = null;

  function help() {
    if (!dialog) {
      const rows = list.map(([key, what]) => dom.make("div", {}, dom.make("dt", {}, dom.make("kbd", { text: key })), dom.make("dd", { text: what })));
      const close = dom.make("button", { type: "button", text: "Close", onclick: () => dialog.close() });
      dialog = dom.make("dialog", { class: "help", "aria-labelledby": "help-title" }, dom.make("h3", { id: "help-title", text: "Keys" }), dom.make("dl", {}, ...rows), dom.make("div", { class: "choices" }, close));
      document.body.append(dialog);
    }
    if (!dialog.open) {
      dialog.showModal();
    }
  }

  // step moves the focus in the list of runs.
  function step(by) {
    const checks = [...document.querySelectorAll("#run-list input")];
    const at = checks.findIndex((c) => c.closest("li").contains(document.activeElement));
    const next = checks[at < 0 ? (by > 0 ? 0 : checks.length - 1) : Math.min(checks.length - 1, Math.max(0, at + by))];
    if (next) {
      unfold();
      next.focus();
    }
  }

  const hereRun = () => document.activeElement?.closest?.("#run-list li");

  function unfold() {
    if (dom.byId("side-fold").getAttribute("aria-expanded") === "false") {
      dom.byId("side-fold").click();
    }
  }

  const actions = {
    "?": help,
    j: () => step(1),
    k: () => step(-1),
    x: () => hereRun()?.querySelector("input").click(),
    o: () => hereRun()?.querySelector("button").click(),
    "[": () => view.setSmoothing(view.smoothing() - 1),
    "]": () => view.setSmoothing(view.smoothing() + 1),
    r: () => view.setZoom(null),
    g: () => view.setLogX(!view.isLogX()),
    t: () => view.nextColors(),
  };

  function press(e) {
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented || document.querySelector("dialog[open]")) {
      return;
    }
    const isText = e.target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea");
    if (isText) {
      return;
    }
    const tab = document.querySelectorAll("#tabs button:not([hidden])")[Number(e.key) - 1];
    if (e.key >= "1" && e.key <= "9" && tab) {
      tab.click();
      e.preventDefault();
    } else if (Object.hasOwn(actions, e.key)) {
      actions[e.key]();
      e.preventDefault();
    }
  }

  document.addEventListener("keydown", press);

  return { help };
})();
