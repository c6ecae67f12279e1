package runfile

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/millrace/millrace/internal/spelling"
)

// Tracker names a program that a run reports to besides its own records: TensorBoard, in YAML the text tensorboard, or
// a server, in YAML a mapping.
type Tracker struct {
	TensorBoard bool
	MLflow      MLflow // without a URL: none
}

// MLflow is a tracking server, and what the run is called there.
type MLflow struct {
	URL        string `yaml:"mlflow"`
	Experiment string `yaml:"experiment,omitempty"` // empty: DefaultExperiment
	Run        string `yaml:"run,omitempty"`        // empty: the name of the output directory
}

// DefaultExperiment is the experiment of runs that name none.
const DefaultExperiment = "millrace"

const tensorBoard = "tensorboard"

// scripted are trackers that only their own Python packages can write to.
var scripted = []string{"wandb", "trackio", "swanlab"}

// UnmarshalYAML reads the text, or the mapping.
func (t *Tracker) UnmarshalYAML(unmarshal func(any) error) error {
	*t = Tracker{}
	var name string
	if err := unmarshal(&name); err != nil {
		return unmarshal(&t.MLflow)
	}
	switch {
	case name == tensorBoard:
		t.TensorBoard = true
		return nil
	case name == "mlflow":
		return errors.New("mlflow has no server: write {mlflow: http://HOST:5000}")
	case slices.Contains(scripted, name):
		return fmt.Errorf("%s can be written to by its own Python package alone: see docs/trackers.md for a script that "+
			"follows the records of a run; here use tensorboard, or {mlflow: URL}", name)
	}
	return fmt.Errorf("%q is unknown%s: use tensorboard, or {mlflow: URL}", name,
		strings.TrimSuffix(spelling.Question(name, []string{tensorBoard, "mlflow"}), "?"))
}

// MarshalYAML writes what UnmarshalYAML reads.
func (t Tracker) MarshalYAML() (any, error) {
	if t.TensorBoard {
		return tensorBoard, nil
	}
	return t.MLflow, nil
}

// checkTrackers refuses trackers that cannot be written to.
func checkTrackers(all []Tracker) error {
	boards, servers := 0, 0
	for i, t := range all {
		if t.TensorBoard {
			boards++
			continue
		}
		servers++
		if err := t.MLflow.check(); err != nil {
			return fmt.Errorf("report_to[%d]: %w", i, err)
		}
	}
	if boards > 1 || servers > 1 {
		return errors.New("report_to names a tracker twice: remove one of them")
	}
	return nil
}

// check refuses a server that cannot be asked, and names that it would not take.
func (m MLflow) check() error {
	u, err := url.Parse(m.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("mlflow is %q: give the address of a tracking server, such as http://localhost:5000", m.URL)
	case u.User != nil:
		return errors.New("mlflow has a name or a password in its address, which the run would write to its files: set " +
			"MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN")
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("mlflow is %q: leave out what follows ? or #", m.URL)
	}
	for _, name := range []string{m.Experiment, m.Run} {
		if len(name) > maxTrackerName || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("experiment and run are names of one line with at most %d characters", maxTrackerName)
		}
	}
	return nil
}

// maxTrackerName bounds names on servers; MLflow takes 250 characters.
const maxTrackerName = 250
