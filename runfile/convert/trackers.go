package convert

import (
	"maps"
	"slices"
	"strings"
)

// foreign are trackers that only their own packages write to, by the names that report_to has for them, with the
// beginning of their keys, and those of these that are enough to ask for them.
var foreign = []struct {
	name, title, prefix string
	asks                []string
}{
	{"wandb", "Weights & Biases", "wandb_", []string{"use_wandb", "wandb_project"}},
	{"swanlab", "SwanLab", "swanlab_", []string{"use_swanlab"}},
	{"trackio", "trackio", "trackio_", []string{"use_trackio"}},
}

// trackers sets report_to.
func (c *conversion) trackers() {
	key, v := c.take("report_to")
	asked := list(v)
	all := slices.Contains(asked, "all") // of what is installed
	wants := func(name string) bool { return slices.Contains(asked, name) }
	asks := func(keys ...string) (on []string) {
		for _, k := range keys {
			if _, v := c.take(k); isOn(v) || !isOff(v) {
				on = append(on, k)
			}
		}
		return on
	}
	var parts, from []string
	if own := asks("use_tensorboard"); wants("tensorboard") || own != nil {
		parts, from = append(parts, "tensorboard"), append(from, own...)
	}
	if own := asks("use_mlflow", "mlflow_tracking_uri", "mlflow_experiment_name", "mlflow_run_name"); wants("mlflow") ||
		own != nil {
		from = append(from, own...)
		if server := c.mlflow(); server != "" {
			parts = append(parts, server)
		} else {
			by := own
			if wants("mlflow") {
				by = append(given(key), own...)
			}
			c.decide(by, "report_to: by %s the file reports to MLflow, and does not name a server: add "+
				"{mlflow: http://HOST:5000}, the address that MLFLOW_TRACKING_URI has", strings.Join(by, ", "))
		}
	}
	for _, f := range foreign {
		own := asks(f.asks...)
		if !wants(f.name) && own == nil {
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(c.values)) {
			if strings.HasPrefix(k, f.prefix) && !slices.Contains(own, k) {
				c.dismiss("the script in docs/trackers.md has it as an argument", k)
			}
		}
		by := own
		if wants(f.name) {
			by = append(given(key), own...)
		}
		c.decide(by, "report_to: by %s the file reports to %s, which only its own Python package can write to: a script in "+
			"docs/trackers.md follows the records of a run (%s)", strings.Join(by, ", "), f.title, f.name)
	}
	if parts != nil {
		c.set("report_to", "["+strings.Join(parts, ", ")+"]", append(given(key), from...), "")
	}
	c.otherTrackers(key, asked, all)
}

// otherTrackers says what becomes of names in report_to that no setting is made of.
func (c *conversion) otherTrackers(key string, asked []string, all bool) {
	known := []string{"tensorboard", "mlflow", "none", "all"}
	for _, f := range foreign {
		known = append(known, f.name)
	}
	for _, name := range asked {
		if !slices.Contains(known, name) {
			c.decide([]string{key}, "report_to: the file reports to %s, which Millrace does not write to; every step is a "+
				"record of metrics.jsonl", plainWord(name))
		}
	}
	if all {
		c.dismiss("all stands for the trackers that are installed; name those that you want in report_to", key)
	} else {
		c.dismiss("the run reports to no tracker", given(key)...)
	}
}

// mlflow is the entry of report_to for the server that the file names; empty if it names none.
func (c *conversion) mlflow() string {
	address := textOf(c.values["mlflow_tracking_uri"])
	isServer := strings.HasPrefix(address, "http://") || strings.HasPrefix(address, "https://")
	if !isServer || strings.Contains(address, "@") {
		return ""
	}
	entry := "{mlflow: " + scalar(address)
	for _, of := range [][2]string{{"experiment", "mlflow_experiment_name"}, {"run", "mlflow_run_name"}} {
		if name := textOf(c.values[of[1]]); name != "" {
			entry += ", " + of[0] + ": " + scalar(name)
		}
	}
	return entry + "}"
}
