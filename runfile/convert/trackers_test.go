package convert

import (
	"strings"
	"testing"
)

// Trackers of other trainers become report_to, or a line that says what to do.
func TestTrackers(t *testing.T) {
	for name, c := range map[string]struct{ file, reportTo, says string }{
		"none":        {"report_to: none\n", "", "report_to: the run reports to no tracker"},
		"nothing":     {"logging_steps: 1\n", "", ""},
		"tensorboard": {"report_to: [tensorboard]\n", "[tensorboard]", ""},
		"with commas": {"report_to: tensorboard, wandb\n", "[tensorboard]", "only its own Python package can write to"},
		"all":         {"report_to: all\n", "", "all stands for the trackers that are installed"},
		"a switch":    {"use_tensorboard: true\n", "[tensorboard]", ""},
		"off":         {"use_tensorboard: false\nuse_wandb: false\nwandb_project:\n", "", ""},
		"mlflow":      {"report_to: mlflow\n", "", "does not name a server: add {mlflow: http://HOST:5000}"},
		"a file":      {"use_mlflow: true\nmlflow_tracking_uri: file:./mlruns\n", "", "does not name a server"},
		"a password":  {"mlflow_tracking_uri: http://a:b@host\n", "", "does not name a server"},
		"a server": {"use_mlflow: true\nmlflow_tracking_uri: http://host:5000\nmlflow_experiment_name: the first\n" +
			"mlflow_run_name: x\n", `[{mlflow: "http://host:5000", experiment: "the first", run: x}]`, ""},
		"wandb": {"wandb_project: p\nwandb_entity: e\nwandb_api_key: secret\n", "",
			"docs/trackers.md follows the records of a run (wandb)"},
		"swanlab": {"use_swanlab: true\nswanlab_project: p\n", "", "a run (swanlab)"},
		"others":  {"report_to: [clearml, trackio]\n", "", "the file reports to clearml, which Millrace does not write to"},
	} {
		doc := "base_model: m\ndatasets: [{path: a.jsonl, type: alpaca}]\nmicro_batch_size: 1\nnum_epochs: 1\n" + c.file
		r, err := File("f.yml", []byte(doc))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := ""
		for _, s := range r.Settings {
			if s.Key == "report_to" {
				got = s.Value
			}
		}
		flat := strings.Join(strings.Fields(strings.ReplaceAll(r.RunFile, "#", " ")), " ")
		if got != c.reportTo || !strings.Contains(flat, c.says) || strings.Contains(r.RunFile, "secret") {
			t.Errorf("%s: report_to %q, want %q; no %q in\n%s", name, got, c.reportTo, c.says, r.RunFile)
		}
		everyKeyIsSaid(t, "run.yaml", []byte(doc), r)
	}
}
