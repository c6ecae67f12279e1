package train

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
)

// What hosts make sure of before the first step: that they run the same. cluster_plan.go has their plans.

// chooseGroups decides numerics.groups where it is auto, and refuses groups that the hosts cannot share.
func (c *Cluster) chooseGroups(config *runfile.Config) error {
	hosts, rows := c.count(), config.BatchTokens/config.SequenceLen
	if hosts == 1 {
		return nil
	}
	groups := &config.Numerics.Groups
	switch {
	case *groups > 0 && int(*groups)%hosts != 0:
		return fmt.Errorf("numerics.groups is %d, and %d hosts cannot have as many groups each: take a number of "+
			"hosts that divides %[1]d; a new run in another output_dir may have other groups", *groups, hosts)
	case *groups == 0 && rows%hosts != 0:
		return fmt.Errorf("%d hosts do not divide the %d sequences of a step (batch_tokens / sequence_len): change "+
			"batch_tokens, or take another number of hosts", hosts, rows)
	case *groups == 0:
		*groups = runfile.Auto(hosts)
	}
	return nil
}

// sameness is something that must be the same on all hosts.
type sameness struct {
	What string `json:"what"` // with another, or other, before it
	Is   string `json:"is"`   // as a host has it: a sum, or its lines
	How  string `json:"how"`  // to make it the same
}

// checkSame refuses a run whose hosts do not have the same program, settings, model and data. It names the first host
// that differs from host 0.
func (t *trainer) checkSame() error {
	c := t.env.Cluster
	if c == nil {
		return nil
	}
	own, err := t.same()
	if err = c.Agree(blame.BadRequest(err)); err != nil {
		return err
	}
	all, err := exchange(c, own)
	if err != nil {
		return err
	}
	return c.everywhere(blame.BadRequest(c.difference(all)))
}

// difference says what the first host that differs from host 0 has otherwise; nil if all have the same.
func (c *Cluster) difference(all [][]sameness) error {
	for host, theirs := range all {
		if len(theirs) != len(all[0]) {
			return fmt.Errorf("%s has another program than %s, which compares other things: install the same one on all "+
				"of them", c.Name(host), c.Name(0))
		}
		for i, s := range all[0] {
			if theirs[i] != s {
				return fmt.Errorf("%s has %s than %s%s: %s", c.Name(host), s.What, c.Name(0),
					differentLine(theirs[i].Is, s.Is), s.How)
			}
		}
	}
	return nil
}

// differentLine shows the first line that two texts of several lines do not share.
func differentLine(has, other string) string {
	a, b := strings.Split(has, "\n"), strings.Split(other, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] && len(b) > 1 { // one line is a sum
			return fmt.Sprintf(" (%q, not %q)", strings.TrimSpace(a[i]), strings.TrimSpace(b[i]))
		}
	}
	return ""
}

// same lists what has to be the same on all hosts, as this host has it.
func (t *trainer) same() ([]sameness, error) {
	settings := *t.config
	settings.Memory, settings.Device = runfile.Memory{}, ""
	settings.OutputDir = "" // compared before
	settings.Model = ""     // of which the contents count
	doc, err := settings.YAML()
	if err != nil {
		return nil, err
	}
	prompts, err := t.samples.sum()
	if err != nil {
		return nil, err
	}
	return []sameness{
		{"another program", thisProgram(), "install the same one on all of them"},
		{"another run file, or other settings,", string(doc), "give all of them the same"},
		{"another config.json of the model", sumOf(t.src.config.Raw()), "copy the model to all of them"},
		{"other training data", t.data.Fingerprint(), "give all of them the same files and the same tokenizer"},
		{"another set of held-out documents", t.at.Held, "give all of them the same files"},
		{"other tokens of the samples' prompts, or of their ends,", prompts,
			"give all of them the same samples.prompts_file, tokenizer, chat template and generation_config.json"},
		{"another set of weights in the model", t.src.base.WeightsSHA256, "copy the model to all of them"},
	}, nil
}

func sumOf(b []byte) string { return fmt.Sprintf("%016x", xxh3.Hash(b)) }

// thisProgram says which program this is, as far as its build has recorded it.
func thisProgram() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	of := info.GoVersion + " " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" || s.Key == "vcs.modified" || s.Key == "-tags" {
			of += " " + s.Value
		}
	}
	return of
}

// waitForSteps lets hosts wait for four steps of sec seconds, if that is longer than they wait, and returns how
// long they do then; else 0. An owner waits for sums of gradients from the beginning of a step, and they come after the
// forward pass. Predictions, and the times of other steps, may be that wrong.
func (t *trainer) waitForSteps(sec float64) time.Duration {
	c := t.env.Cluster
	minutes := math.Ceil(min(4*sec, longestWait.Seconds()) / 60)
	enough := time.Duration(minutes) * time.Minute
	if enough <= max(c.waits, time.Duration(t.config.Distributed.Timeout)) {
		return 0
	}
	c.waits = enough
	if c.WaitUpTo != nil {
		c.WaitUpTo(enough)
	}
	return enough
}

// longestWait is the longest distributed.timeout as well.
const longestWait = 720 * time.Hour

// noteOtherDevices says that hosts compute on other devices than host 0: the run then has the bits of neither.
func (t *trainer) noteOtherDevices() error {
	c := t.env.Cluster
	all, err := exchange(c, t.plan.ComputedOn)
	if err != nil {
		return err
	}
	for host, on := range all {
		if on != all[0] && c.Leads() {
			t.env.warn("%s computes on %s, and %s on %s: another number of hosts, or another order of them, will "+
				"have other last bits", c.Name(host), on, c.Name(0), all[0])
			break
		}
	}
	return nil
}

// allEnded is hasEnded, and refuses links and models of others in place of the models that the run is to write: as host
// 0 finds it.
func (t *trainer) allEnded(ctx context.Context) (step int, err error) {
	cluster := t.env.Cluster
	err = t.env.together(ctx, func(ctx context.Context) (err error) {
		if !cluster.Leads() {
			return nil
		}
		if step, err = t.hasEnded(ctx); err == nil && step == 0 {
			err = t.env.Runs().CheckModelLinks(t.config)
		}
		if err == nil && step == 0 {
			err = t.refuseOthers(ctx)
		}
		return blame.OfStart(ctx, err)
	})
	if err != nil {
		return 0, err
	}
	return decided(cluster, step)
}
