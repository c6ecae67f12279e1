"use strict";
// runs is the list at the left, and the table with the numbers of the drawn runs.
const runs = (() => {
  const states = { running: "running", stopped: "stopped", ended: "ended" };

  function update() {
    const list = store.runs();
    dom.keyed(dom.byId("run-list"), list, (r) => r.id, create, change);
    dom.say(dom.byId("side-fold"), list.length === 1 ? "1 run" : `${list.length} runs`);
    const message = dom.byId("message");
    message.hidden = !store.facts().message;
    dom.say(message, dom.clean(store.facts().message, 500));
    const nothing = dom.byId("nothing");
    nothing.hidden = list.length > 0 || store.connection() === "locked";
    dom.say(nothing, store.connection() === "connecting" ? "Loading" : "No run has done a step yet. Its curves appear here as soon as one has.");
    summarize(list.filter((r) => view.isDrawn(r.id)));
  }

  function create(r) {
    const parts = {
      check: dom.make("input", { type: "checkbox", onchange: (e) => toggle(e.target, r.id) }),
      mark: dom.make("span", { class: "mark" }),
      name: dom.make("span", { class: "name" }),
      state: dom.make("span", { class: "state" }),
      facts: dom.make("small"),
      bar: dom.make("progress", { max: 1 }),
      left: dom.make("small"),
    };
    const only = dom.make("button", { type: "button", class: "small", text: "only", onclick: () => view.only(r.id) });
    const e = dom.make("li", {},
      dom.make("div", { class: "line" }, dom.make("label", {}, parts.check, parts.mark, parts.name), only),
      dom.make("div", { class: "line" }, parts.state, parts.left),
      parts.bar, parts.facts);
    e.parts = parts;
    parts.only = only;
    return e;
  }

  function toggle(check, id) {
    if (!view.toggle(id)) {
      check.checked = false;
      dom.announce(`${view.mostRuns} runs are drawn, which is the most: take one away first.`);
    }
  }

  function change(e, r) {
    const { check, mark, name, state, facts, bar, left, only } = e.parts;
    const isDrawn = view.isDrawn(r.id);
    e.classList.toggle("drawn", isDrawn);
    check.checked = isDrawn;
    const style = view.style(r.id);
    const look = isDrawn ? `${style.color} ${style.dash}` : "";
    if (mark.dataset.look !== look) {
      mark.dataset.look = look;
      mark.replaceChildren(...(isDrawn ? [dom.swatch(style)] : []));
    }
    dom.say(name, dom.clean(store.nameOf(r), 200));
    name.title = dom.clean(r.name, 300);
    only.setAttribute("aria-label", "Draw only " + dom.clean(store.nameOf(r), 200));
    dom.say(state, states[r.state] ?? "");
    state.dataset.state = states[r.state] ?? "";
    const share = r.planned_steps > 0 ? r.last_step / r.planned_steps : null;
    bar.hidden = share === null;
    bar.value = share ?? 0;
    bar.setAttribute("aria-label", `${units.percent(share ?? 0)} of the steps are done`);
    const steps = r.planned_steps > 0 ? `${units.whole(r.last_step)} of ${units.whole(r.planned_steps)} steps` : `${units.whole(r.last_step)} steps`;
    const wait = r.state === "running" && r.seconds_left > 0 ? `, ${units.duration(r.seconds_left)} left` : "";
    const reading = r.complete === false ? ", reading its records" : "";
    dom.say(left, steps + wait + reading);
    dom.say(facts, dom.clean([r.model, (r.data ?? []).join(", ")].filter(Boolean).join(" · "), 300));
  }

  // --- the table of the drawn runs ---

  const pair = (first, last) => (units.isMissing(first) ? units.loss(last) : `${units.loss(first)} → ${units.loss(last)}`);

  const steps = (r) => units.whole(r.last_step) + (r.planned_steps > 0 ? ` of ${units.whole(r.planned_steps)}` : "");

  // life is the share of the drive's rated writes, with ≈ where the rating is assumed; the tab of memory says more.
  const life = (s) => (s.rated_bytes > 0 && s.disk_written_bytes > 0 ? (s.rated_is_assumed ? "≈ " : "") + units.percent(s.written_share, 2) : units.none);

  const least = (s) => (units.isMissing(s.least_eval_loss) ? units.none : `${units.loss(s.least_eval_loss)} at ${units.whole(s.least_eval_step)}`);

  // A column has its title, its text of a run, and whether small screens leave it out.
  const columns = [
    ["Steps", (r) => steps(r)],
    ["Time left", (r) => (r.state === "running" ? units.duration(r.seconds_left) : units.none)],
    ["Loss", (r) => pair(r.summary.first_loss, r.summary.last_loss)],
    ["Average loss", (r) => units.loss(r.summary.smoothed_loss)],
    ["Evaluation loss", (r) => pair(r.summary.eval_loss_before, r.summary.last_eval_loss)],
    ["Least evaluation", (r) => least(r.summary), true],
    ["Tokens/s", (r) => units.count(r.summary.tokens_per_sec)],
    ["Model TFLOPS", (r) => units.significant(r.summary.model_tflops, 3), true],
    ["Time of a step", (r) => units.duration(r.summary.step_sec), true],
    ["Tokens", (r) => units.count(r.summary.tokens), true],
    ["Host memory", (r) => units.bytes(r.summary.host_peak_bytes), true],
    ["Written", (r) => (r.summary.disk_written_bytes > 0 ? units.written(r.summary.disk_written_bytes) : units.none), true],
    ["Of the drive's life", (r) => life(r.summary), true],
    ["Newest record", (r) => units.when(r.updated), true],
  ];

  // summarize writes a row for each run. A column that says nothing of any run is left out.
  function summarize(drawn) {
    const parent = dom.byId("summary");
    parent.hidden = !drawn.length;
    parent.className = drawn.length > 3 ? "many" : "";
    const rows = drawn.map((r) => columns.map(([, of]) => of({ ...r, summary: r.summary ?? {} })));
    const kept = columns.map((c, i) => i).filter((i) => rows.some((row) => row[i] !== units.none));
    dom.keyed(parent, drawn, (r) => r.id, () => dom.make("article", { class: "card" }, dom.make("h2"), dom.make("dl")), (e, r) => {
      const row = rows[drawn.indexOf(r)];
      const [head, list] = e.children;
      const style = view.style(r.id);
      const look = `${store.nameOf(r)} ${r.model} ${style.color} ${style.dash}`;
      if (head.dataset.look !== look) {
        head.dataset.look = look;
        head.replaceChildren(dom.swatch(style), dom.make("span", { text: dom.clean(store.nameOf(r), 200), title: dom.clean(r.name, 300) }), dom.make("small", { text: dom.clean([r.objective, r.model].filter(Boolean).join(" · "), 200) }));
      }
      dom.keyed(list, kept, (i) => i, (i) => dom.make("div", { class: columns[i][2] ? "minor" : "" }, dom.make("dt", { text: columns[i][0] }), dom.make("dd")), (f, i) => dom.say(f.lastChild, row[i]));
    });
  }

  return { update };
})();
