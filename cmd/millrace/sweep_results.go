package main

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/serve"
	"github.com/millrace/millrace/train/sweep"
)

// sweepPage is the page of a sweep in its directory.
const sweepPage = "sweep.html"

// sweepResults are the results of a sweep, for programs.
type sweepResults struct {
	Runs []sweepResult `json:"runs"` // the best first
	// By names the loss by which runs are compared: least_eval_loss, or smoothed_loss where not all runs evaluate.
	By      string        `json:"by"`
	Verdict *sweepVerdict `json:"verdict"` // null: losses are of other tokens, or not known
	Page    string        `json:"page,omitempty"`
	Notes   []string      `json:"notes,omitempty"`
}

type sweepResult struct {
	Run     string            `json:"run"`
	Dir     string            `json:"dir"`
	Values  map[string]string `json:"values"`
	State   string            `json:"state"`
	Why     string            `json:"why,omitempty"`
	Summary *report.Summary   `json:"summary"` // null: it has done no step
	loss    float64           // NaN: not known
	values  []string
}

// sweepVerdict says which settings are the best.
type sweepVerdict struct {
	Settings []sweepSetting `json:"settings"` // the best first
	Seeds    int            `json:"seeds"`
	// Difference is that of the second one's mean from the first one's, and Noise what seeds alone would exceed in one of
	// twenty comparisons; null where it is not known.
	Difference  float64  `json:"difference"`
	Noise       *float64 `json:"noise"`
	WithinNoise *bool    `json:"within_noise"`
}

type sweepSetting struct {
	Values map[string]string `json:"values"` // without seed
	Loss   float64           `json:"loss"`   // mean over seeds
}

// conclude prints what the runs came to, and draws them. The error says which failed.
func (s *sweeping) conclude(asJSON bool) error {
	results, err := s.results()
	if err != nil {
		return err
	}
	if asJSON {
		err = s.p.printJSON(results)
	} else {
		_, err = s.p.stdout.Write([]byte(terminal.Text(s.text(results))))
	}
	if err != nil {
		return err
	}
	var failed []string
	for _, r := range s.runs {
		if r.State == stateFailed || r.State == stateDiverged {
			failed = append(failed, r.Name)
		}
	}
	if len(failed) > 0 {
		const most = 5
		names := strings.Join(failed[:min(len(failed), most)], ", ")
		if len(failed) > most {
			names += ", ..."
		}
		return fmt.Errorf("%d of %s failed or diverged (%s): see their lines above; the same command tries again those that "+
			"failed", len(failed), spelling.Count(len(s.runs), "run"), names)
	}
	return nil
}

// results reads the records of the runs, and compares them.
func (s *sweeping) results() (*sweepResults, error) {
	all := &sweepResults{By: "least_eval_loss"}
	var settings [][]runfile.FlatValue
	evaluated := true
	for _, r := range s.runs {
		of := sweepResult{Run: r.Name, Dir: r.Dir, Values: s.valuesOf(r.Values), State: r.State, Why: r.Why, loss: math.NaN(),
			values: r.Values}
		doc, err := r.config.YAML()
		if err != nil {
			return nil, err
		}
		flat, err := runfile.Flat(doc)
		if err != nil {
			return nil, err
		}
		settings = append(settings, flat)
		if read, err := report.ReadBrief(r.Dir); err == nil {
			summary := report.Summarize(read)
			summary.Run = r.Name
			of.Summary = &summary
			evaluated = evaluated && (r.State != stateDone || summary.LeastEvalLoss != nil)
		}
		all.Runs = append(all.Runs, of)
	}
	if !evaluated {
		all.By = "smoothed_loss"
	}
	var losses []float64
	for i := range all.Runs {
		r := &all.Runs[i]
		if r.Summary != nil && r.State == stateDone {
			loss := r.Summary.LeastEvalLoss
			if !evaluated {
				loss = r.Summary.SmoothedLoss
			}
			if loss != nil {
				r.loss = *loss
			}
		}
		losses = append(losses, r.loss)
	}
	s.judge(all, settings, losses)
	slices.SortStableFunc(all.Runs, func(a, b sweepResult) int { // NaN is less than all numbers
		if math.IsNaN(a.loss) != math.IsNaN(b.loss) {
			return -cmp.Compare(a.loss, b.loss)
		}
		return cmp.Compare(a.loss, b.loss)
	})
	return all, s.draw(all)
}

// judge compares the settings, if their losses are of the same tokens.
func (s *sweeping) judge(all *sweepResults, settings [][]runfile.FlatValue, losses []float64) {
	differ := lossesOf(runfile.FlatDifferences(settings), settings)
	keys := differ.trained
	if all.By == "least_eval_loss" {
		keys = differ.evaluated
		if i := slices.Index(keys, sweep.SeedKey); i >= 0 {
			keys = slices.Delete(keys, i, i+1)
			all.Notes = append(all.Notes, "seed chooses the held-out documents (val_size): losses of runs with different seeds "+
				"are of other documents, and those of settings are means over the same ones")
		}
	} else {
		all.Notes = append(all.Notes, "not all runs evaluate: they are compared by their average training loss; set "+
			"eval.datasets or val_size to compare what they have learned")
	}
	if len(keys) > 0 {
		all.Notes = append(all.Notes, fmt.Sprintf("the losses are of other tokens (%s), so no setting is called the best",
			strings.Join(keys, ", ")))
		return
	}
	if len(differ.models) > 0 {
		all.Notes = append(all.Notes, differ.notes()[len(differ.notes())-1])
	}
	var runs []sweep.Run
	for _, r := range s.runs {
		runs = append(runs, r.Run)
	}
	v := sweep.Judge(s.keys, runs, losses)
	if len(v.Settings) == 0 {
		return
	}
	all.Verdict = &sweepVerdict{Seeds: v.Seeds, Difference: v.Difference(), Noise: v.Noise}
	if v.Noise != nil {
		within := v.Difference() <= *v.Noise
		all.Verdict.WithinNoise = &within
	}
	for _, of := range v.Settings {
		all.Verdict.Settings = append(all.Verdict.Settings, sweepSetting{s.valuesOf(of.Values), of.Mean})
	}
}

// draw writes the page, with the best runs where there are more than a page can tell apart.
func (s *sweeping) draw(all *sweepResults) error {
	var dirs []string
	for _, r := range all.Runs {
		if r.Summary != nil && len(dirs) < mostReported {
			dirs = append(dirs, r.Dir)
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	frozen, err := serve.Freeze(dirs, thisBuild().Version, true)
	if err != nil {
		return err
	}
	all.Page = filepath.Join(s.parent, sweepPage)
	return writeReport(all.Page, frozen, 0)
}

// text is the results for people.
func (s *sweeping) text(all *sweepResults) string {
	var b strings.Builder
	head := []string{"run"}
	for _, k := range s.keys {
		head = append(head, k.Name)
	}
	head = append(head, "state", "steps", "average loss", "eval loss", "least eval loss", "tokens/s")
	var rows [][]string
	for i, r := range all.Runs {
		row := []string{fmt.Sprint(i + 1)}
		for _, v := range r.values {
			row = append(row, cellOf(v))
		}
		state := r.State
		if r.Why != "" {
			state += ", " + r.Why
		}
		row = append(row, state)
		if m := r.Summary; m != nil {
			row = append(row, fmt.Sprint(m.LastStep), m.Average(), m.Eval(), m.LeastEval(), fmt.Sprintf("%.0f", m.TokensPerSec))
		} else {
			row = append(row, "-", "-", "-", "-", "-")
		}
		rows = append(rows, row)
	}
	width := terminal.Columns(s.p.stdout)
	fmt.Fprintf(&b, "in %s\n\n%s\n", s.parent, columns(head, rows, width))
	lines := all.Notes
	if v := all.Verdict; v != nil {
		lines = append(verdictLines(v, s.keys), lines...)
	}
	if all.Page != "" {
		line := "curves: " + all.Page
		if len(all.Runs) > mostReported {
			line += fmt.Sprintf(" (of the first %d)", mostReported)
		}
		lines = append(lines, line)
	}
	for _, line := range lines {
		b.WriteString(terminal.Wrap(line+"\n", width))
	}
	return b.String()
}

// verdictLines says which settings are the best, and how sure that is.
func verdictLines(v *sweepVerdict, keys []sweep.Key) (lines []string) {
	name := func(of sweepSetting) string {
		var parts []string
		for _, k := range keys {
			if value, ok := of.Values[k.Name]; ok {
				parts = append(parts, k.Name+"="+cellOf(value))
			}
		}
		return strings.Join(parts, " ")
	}
	best := v.Settings[0]
	mean := ""
	if v.Seeds > 1 {
		mean = fmt.Sprintf(", the mean of %d seeds", v.Seeds)
	}
	if len(best.Values) == 0 {
		return []string{fmt.Sprintf("loss %.4f%s", best.Loss, mean)}
	}
	lines = append(lines, fmt.Sprintf("best: %s, loss %.4f%s", name(best), best.Loss, mean))
	if len(v.Settings) == 1 {
		return lines
	}
	next := fmt.Sprintf("the next, %s, is %.4f above it", name(v.Settings[1]), v.Difference)
	switch {
	case v.Noise == nil:
		next += "; whether that is more than chance is not known: seeds tell, as in seed=1,2,3"
	case *v.WithinNoise:
		next += fmt.Sprintf(", within the noise of seeds: they alone make differences of up to %.4f (95%% of them)", *v.Noise)
	default:
		next += fmt.Sprintf(", more than the noise of seeds: they alone make differences of up to %.4f (95%% of them)",
			*v.Noise)
	}
	return append(lines, next)
}
