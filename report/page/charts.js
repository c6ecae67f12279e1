"use strict";
// charts says which charts there are and what each draws of a run: columns of metrics.jsonl by their names, with units
// and axes. A chart appears when a drawn run has one of its columns. Columns that no chart knows, such as those of a
// program's own objective, get a chart each in the last group.
const charts = (() => {
  const line = (column, name = "", more = {}) => ({ column, name, ...more });
  const dots = (column, name = "evaluation") => line(column, name, { isDots: true });

  // single has one line for each run, and its evaluations as dots.
  const single = (column, more) => ({ id: column, lines: () => [line(column), dots("eval_" + column)], ...more });

  const learning = "Learning";
  const speed = "Speed";
  const room = "Memory and drive";
  const preferences = "Preferences and rewards";
  const more = "Other numbers";

  const known = [
    {
      id: "loss", group: learning, title: "Loss", unit: "nats per target token", isSmooth: true, format: units.loss,
      lines: () => [line("loss"), dots("eval_loss")],
    },
    { id: "evaluations", group: learning, title: "Evaluation loss", unit: "nats per target token, by set", format: units.loss, lines: evaluationLines("loss", "eval_loss") },
    {
      id: "grad_norm", group: learning, title: "Gradient norm", unit: "before clipping", log: true, isSmooth: true,
      lines: () => [line("grad_norm")],
      marks: { column: "clip_scale", text: "clipped, at the foot" },
    },
    single("learning_rate", { group: learning, title: "Learning rate", unit: "of the step", hasZero: true, lines: () => [line("learning_rate")] }),
    single("mean_token_accuracy", { group: learning, title: "Accuracy of tokens", unit: "% of targets that no token is likelier than", isSmooth: true, times: 100 }),
    single("entropy", { group: learning, title: "Entropy", unit: "nats, of the model's distribution at the targets", isSmooth: true }),
    { id: "max_update_over_lr", group: learning, title: "Greatest update of a weight", unit: "learning rates", log: true, lines: () => [line("max_update_over_lr")] },
    single("aux_loss", { group: learning, title: "Load-balancing loss of experts", unit: "before its coefficient", isSmooth: true }),

    {
      id: "rewards", group: preferences, title: "Rewards", unit: "means over the pairs of a step", isSmooth: true,
      lines: () => [line("rewards/chosen", "chosen"), line("rewards/rejected", "rejected")],
    },
    single("rewards/margins", { group: preferences, title: "Margin of rewards", unit: "the chosen completion's less the rejected one's", isSmooth: true }),
    single("margin", { group: preferences, title: "Margin", unit: "of the reward model", isSmooth: true }),
    single("rewards/accuracies", { group: preferences, title: "Accuracy of rewards", unit: "% of pairs in which the chosen completion has more", isSmooth: true, times: 100 }),
    single("accuracy", { group: preferences, title: "Accuracy", unit: "% of pairs", isSmooth: true, times: 100 }),
    {
      id: "logps", group: preferences, title: "Log-probabilities", unit: "nats, of completions", isSmooth: true,
      lines: () => [line("logps/chosen", "chosen"), line("logps/rejected", "rejected")],
    },
    {
      id: "mean_reward", group: preferences, title: "Rewards of the reward model", unit: "least, mean and greatest", isSmooth: true,
      lines: () => [line("mean_reward", "mean"), line("min_reward", "least"), line("max_reward", "greatest")],
    },
    single("kl", { group: preferences, title: "Distance from the reference", unit: "kl, nats", isSmooth: true }),
    single("nll_loss", { group: preferences, title: "Loss of chosen completions", unit: "nll_loss, nats per token", isSmooth: true, format: units.loss }),

    { id: "tokens_per_sec", group: speed, title: "Tokens per second", unit: "real positions", isSmooth: true, hasZero: true, lines: () => [line("tokens_per_sec")] },
    { id: "model_tflops", group: speed, title: "Model TFLOPS", unit: "10^12 useful operations per second", isSmooth: true, hasZero: true, lines: () => [line("model_tflops")] },
    {
      id: "step_sec", group: speed, title: "Time of a step", unit: "seconds", isSmooth: true, hasZero: true, format: units.duration,
      lines: () => [line("step_sec")], level: (plan) => plan.step_sec,
    },
    {
      id: "lanes", group: speed, title: "Lanes busy", unit: "% of the step, of three runs at most", mostRuns: 3, isSmooth: true, hasZero: true,
      lines: (run) => run.columns.filter((c) => c.startsWith("lanes/")).map((c) => line(c, c.slice(6), { per: "step_sec" })), times: 100,
    },

    {
      id: "host_peak_bytes", group: room, title: "Host memory", unit: "peak so far", hasZero: true, base: 1024, format: units.bytes,
      lines: () => [line("host_peak_bytes")], level: (plan) => plan.host_bytes,
    },
    {
      id: "device_peak_bytes", group: room, title: "Device memory", unit: "peak so far", hasZero: true, base: 1024, format: units.bytes,
      lines: () => [line("device_peak_bytes")], level: (plan) => plan.device_bytes,
    },
    {
      id: "disk", group: room, title: "Drive, in a step", unit: "bytes read and written", isSmooth: true, hasZero: true, base: 1000, format: units.written,
      lines: () => [line("disk_written_bytes", "written"), line("disk_read_bytes", "read")],
    },
    { id: "write_wait_sec", group: room, title: "Waits for the daily limit of writes", unit: "seconds after a step", hasZero: true, format: units.duration, lines: () => [line("write_wait_sec")] },
  ];

  // evaluationLines has a line for each set by its name, and one of all sets together, of one number.
  function evaluationLines(number, whole) {
    return (run) => [
      line(whole, run.eval_sets?.length ? "all sets" : "", { isLinked: true }),
      ...(run.eval_sets ?? []).flatMap((set) =>
        set.columns.filter((c) => c === `eval/${set.label}/${number}`).map((c) => line(c, set.label, { isLinked: true }))),
    ];
  }

  // evaluationCharts are those of the sets' other numbers.
  function evaluationCharts(runs) {
    const numbers = new Set();
    for (const set of runs.flatMap((r) => r.eval_sets ?? [])) {
      for (const c of set.columns) {
        const prefix = `eval/${set.label}/`;
        if (c.startsWith(prefix) && c !== prefix + "loss") {
          numbers.add(c.slice(prefix.length));
        }
      }
    }
    return [...numbers].sort().map((number) => ({
      id: "evaluations/" + number, group: learning, title: "Evaluation: " + number, unit: "by set", lines: evaluationLines(number, "eval_" + number),
    }));
  }

  // What has views of its own, or says nothing over steps.
  const elsewhere = /^(step|time|tokens|target_tokens|clip_scale|pairs|devices\/.*|hosts\/.*|experts\/.*|layers\/.*|lanes\/.*|eval_.*|eval\/.*)$/;

  const columnsOf = (chart, run) => chart.lines(run).map((l) => l.column).filter((c) => run.columns.includes(c));

  // list returns the charts of runs, and those that are drawn on request.
  function list(runs) {
    const drawn = [...known, ...evaluationCharts(runs)].filter((chart) => runs.some((r) => columnsOf(chart, r).length));
    const used = new Set(runs.flatMap((r) => drawn.flatMap((chart) => columnsOf(chart, r))));
    const rest = new Set(runs.flatMap((r) => r.columns).filter((c) => !used.has(c) && !elsewhere.test(c)));
    const others = [...rest].sort().map((c) => ({ id: "other/" + c, group: more, title: c, unit: "", isSmooth: true, lines: () => [line(c)] }));
    return { drawn, others };
  }

  const groups = [learning, preferences, speed, room];

  return { list, groups, more };
})();
