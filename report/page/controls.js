"use strict";
// controls is the tab with what a user may do to a run: save now, stop after this step, change how often it evaluates.
// Each needs the token that the start of the server printed. The page asks for it once and forgets it with the tab.
const controls = (() => {
  let element = null;
  const parts = {};

  function show(parent) {
    if (!element) {
      build();
    }
    parent.replaceChildren(element);
    update();
  }

  function build() {
    parts.note = dom.make("p", { class: "note" });
    parts.tokenRow = tokenForm("token");
    parts.forget = dom.make("div", { class: "control" }, dom.make("span", { text: "The token is kept in this tab." }), button("Forget it", () => { store.setToken(""); update(); }));
    parts.save = button("Save now", () => ask("save", "The run saves a checkpoint after this step."));
    parts.stop = button("Stop after this step", confirmStop);
    parts.stop.classList.add("grave");
    parts.every = dom.make("input", { type: "number", id: "evaluate-every", min: 1, step: 1, onkeydown: (e) => e.key === "Enter" && evaluateEvery() });
    const evaluate = button("Change", evaluateEvery);
    parts.answer = dom.make("p", { class: "answer", role: "status" });
    parts.actions = dom.make("div", {},
      dom.make("div", { class: "control" }, parts.save, dom.make("p", { class: "note", text: "Writes a checkpoint at the end of the step. The run continues." })),
      dom.make("div", { class: "control" }, dom.make("label", { for: "evaluate-every", text: "Evaluate every" }), parts.every, "steps ", evaluate),
      dom.make("div", { class: "control" }, parts.stop, dom.make("p", { class: "note", text: "Saves and ends. The same command resumes it." })));
    parts.dialog = dom.make("dialog", { "aria-labelledby": "stop-title" });
    element = dom.make("section", { class: "chart wide controls" }, dom.make("header", {}, dom.make("h3", { text: "Controls" })), parts.note, parts.tokenRow, parts.forget, parts.actions, parts.answer, parts.dialog);
  }

  // tokenForm asks for the token.
  function tokenForm(id) {
    const field = dom.make("input", { type: "password", id, autocomplete: "off", spellcheck: "false", onkeydown: (e) => e.key === "Enter" && use() });
    const use = () => {
      store.setToken(field.value.trim());
      field.value = "";
      if (parts.answer) {
        dom.say(parts.answer, "");
      }
      update();
    };
    return dom.make("div", { class: "control" }, dom.make("label", { for: id, text: "Token" }), field, button("Use it", use), dom.make("p", { class: "note", text: "The start of the server prints it. This tab of the browser keeps it until it is closed." }));
  }

  // lock asks for the token where the server wants it to show anything at all.
  function lock(is) {
    const section = dom.byId("lock");
    section.hidden = !is;
    if (is && !section.firstChild) {
      section.append(dom.make("h2", { text: "This address shows its runs only with the server's token" }), tokenForm("lock-token"));
    }
  }

  const button = (text, onclick) => dom.make("button", { type: "button", text, onclick });

  function update() {
    const run = store.run(view.current());
    if (!element?.isConnected || !run) {
      return;
    }
    const can = run.controls && !store.isSaved;
    dom.say(parts.note, can ? `Of ${store.nameOf(run)}.` : why(run));
    parts.tokenRow.hidden = !can || store.hasToken();
    parts.forget.hidden = !can || !store.hasToken();
    parts.actions.hidden = !can;
    for (const e of parts.actions.querySelectorAll("button, input")) {
      e.disabled = !store.hasToken();
    }
  }

  function why(run) {
    if (store.isSaved) {
      return "This page is saved: it has no connection to the run.";
    }
    return run.state === "running"
      ? `${store.nameOf(run)} cannot be controlled from here: only a run that was started with train --serve can.`
      : `${store.nameOf(run)} does not run now.`;
  }

  // ask sends a request and says how it ended. A token that the server refuses is forgotten.
  async function ask(path, done) {
    const run = store.run(view.current());
    dom.say(parts.answer, "Asking");
    try {
      await store.post(`${store.urlOf(run.id)}/${path}`);
      dom.say(parts.answer, done);
    } catch (error) {
      dom.say(parts.answer, `It was not done: ${error.message}`);
    }
    update();
  }

  function evaluateEvery() {
    const steps = Number(parts.every.value);
    if (!Number.isInteger(steps) || steps < 1) {
      dom.say(parts.answer, "Give a whole number of steps, 1 or more.");
      parts.every.focus();
      return;
    }
    ask(`evaluate-every?steps=${steps}`, `The run evaluates every ${units.whole(steps)} steps from now.`);
  }

  function confirmStop() {
    const run = store.run(view.current());
    const title = dom.make("h3", { id: "stop-title", text: `Stop ${dom.clean(store.nameOf(run), 100)}?` });
    const close = () => parts.dialog.close();
    const stop = button("Stop it", () => { close(); ask("stop", "The run ends after this step and saves."); });
    stop.classList.add("grave");
    parts.dialog.replaceChildren(title, dom.make("p", { text: "It finishes this step, saves a checkpoint, and ends. Nothing is lost; the same command resumes it." }), dom.make("div", { class: "choices" }, button("Let it run", close), stop));
    parts.dialog.showModal();
    parts.dialog.querySelector("button").focus();
  }

  return { show, update, lock };
})();
