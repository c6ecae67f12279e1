package train

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
)

// Before the first step hosts make sure that they run the same. They have a plan each, within their own budgets, and
// the same sizes.

// sameness is something that must be the same on all hosts.
type sameness struct {
	What string `json:"what"` // with another, or other, before it
	Is   string `json:"is"`   // as a host has it: a sum, or its lines
	How  string `json:"how"`  // to make it the same
}

// checkSame refuses a run whose hosts do not have the same program, settings, model and data. It names the first host
// that differs from host 0.
func (t *trainer) checkSame() error {
	own, err := t.same()
	d := hosts.Decide(t.env.Cluster, hosts.Report[[]sameness]{Err: blame.BadRequest(err), Own: own})
	if d.Err != nil {
		return d.Err
	}
	return t.env.Cluster.Everywhere(blame.BadRequest(difference(t.env.Cluster, d.All)))
}

// difference says what the first host that differs from host 0 has otherwise; nil if all have the same.
func difference(c *hosts.Cluster, all [][]sameness) error {
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
	settings.Notify = nil   // host 0 alone tells, and addresses are secrets
	settings.Model = ""     // of which the contents count
	doc, err := settings.YAML()
	if err != nil {
		return nil, err
	}
	prompts, err := t.samples.Tokens()
	if err != nil {
		return nil, err
	}
	return []sameness{
		{"another program", thisProgram(), "install the same one on all of them"},
		{"another run file, or other settings,", string(doc), "give all of them the same"},
		{"another config.json of the model", sumOf(t.src.Config.Raw()), "copy the model to all of them"},
		{"other training data", t.data.Fingerprint(), "give all of them the same files and the same tokenizer"},
		{"another set of held-out documents", t.at.Held, "give all of them the same files"},
		{"other tokens of the samples' prompts, or of their ends,", sumOf(prompts),
			"give all of them the same samples.prompts_file, tokenizer, chat template and generation_config.json"},
		{"another set of weights in the model", t.src.Base.WeightsSHA256, "copy the model to all of them"},
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

// allEnded is hasEnded, and refuses links and models of others in place of the models that the run is to write: as host
// 0 finds it.
func (t *trainer) allEnded(ctx context.Context) (step int, err error) {
	cluster := t.env.Cluster
	err = t.env.Together(ctx, func(ctx context.Context) (err error) {
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
	d := hosts.Decide(cluster, hosts.Report[int]{Own: step})
	return d.Lead(), d.Err
}

// planTogether plans the run on each host. Sizes that are auto become the smallest that any of them chooses for itself:
// what has room with larger sizes has room with smaller ones.
func (t *trainer) planTogether(ctx context.Context, b *rundir.Beginning, asked runfile.Sizes) error {
	c := t.env.Cluster
	plans := func(ctx context.Context) error {
		return t.makePlan(ctx, t.rates.Steps, plan.Outputs{}, t.samples.Memory().With(t.answersMemory()), b.HasSizes())
	}
	err := t.env.Together(ctx, func(ctx context.Context) error {
		return blame.OfStart(ctx, hosts.OfBudgets(t.keptSizes(ctx, asked, plans(ctx))))
	})
	if err != nil {
		return err
	}
	planned := hosts.Decide(c, hosts.Report[runfile.Sizes]{Own: runfile.SizesOf(t.plan.Whole)})
	if planned.Err != nil {
		return planned.Err
	}
	sizes, of := smallestSizes(planned.All)
	t.config.Numerics = sizes
	err = t.env.Together(ctx, func(ctx context.Context) error {
		if sizes == runfile.SizesOf(t.plan.Whole) {
			return nil
		}
		return blame.OfStart(ctx, hosts.OfBudgets(sizesOf(c.Name(of), sizes, plans(ctx))))
	})
	if err != nil {
		return err
	}
	if lead := planned.Lead(); sizes != lead {
		t.env.Note("micro_batch %d, head_chunk %d and block_chunk %d are for the budgets of %s; %s alone would have "+
			"%d, %d and %d", sizes.MicroBatch, sizes.HeadChunk, sizes.BlockChunk, c.Name(of), c.Name(0),
			lead.MicroBatch, lead.HeadChunk, lead.BlockChunk)
	}
	return t.waitAsPlanned()
}

// smallestSizes are the smallest of those that hosts have chosen, and the first host that has the smallest
// micro-batches, and of these the smallest chunk of the head.
func smallestSizes(all []runfile.Sizes) (sizes runfile.Sizes, of int) {
	for host, s := range all {
		if least := all[of]; s.MicroBatch < least.MicroBatch ||
			s.MicroBatch == least.MicroBatch && s.HeadChunk < least.HeadChunk {
			of = host
		}
	}
	sizes = all[of]
	for _, s := range all {
		sizes.HeadChunk = min(sizes.HeadChunk, s.HeadChunk)
		if s.MicroBatch == sizes.MicroBatch { // a chunk of other micro-batches need not divide these well
			sizes.BlockChunk = min(sizes.BlockChunk, s.BlockChunk)
		}
	}
	return sizes, of
}

// sizesOf adds to the error of a plan the host whose sizes they are.
func sizesOf(host string, sizes runfile.Sizes, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; micro_batch %d, head_chunk %d and block_chunk %d are for the budgets of %s: set smaller "+
		"numerics.micro_batch and numerics.head_chunk", err, sizes.MicroBatch, sizes.HeadChunk, sizes.BlockChunk, host)
}

// prediction tells the other hosts how long a step takes on a host by its plan, and on which devices it is computed.
type prediction struct {
	StepSec    float64 `json:"step_sec"`
	ComputedOn string  `json:"computed_on"`
}

// waitAsPlanned lets hosts wait for each other as long as they need by their plans, and says that hosts compute on
// other devices than host 0: the run then has the bits of neither.
func (t *trainer) waitAsPlanned() error {
	c := t.env.Cluster
	d := hosts.Decide(c, hosts.Report[prediction]{Own: prediction{t.plan.Predicted.StepSeconds, t.plan.ComputedOn}})
	if d.Err != nil {
		return d.Err
	}
	longest := 0.0
	for _, of := range d.All {
		longest = max(longest, of.StepSec)
	}
	if longer := c.WaitForSteps(longest, time.Duration(t.config.Distributed.Timeout)); longer > 0 {
		t.env.Note("a step takes about %s: hosts wait up to %v for each other", console.Seconds(longest),
			runfile.Duration(longer))
	}
	lead := d.Lead().ComputedOn
	if host := slices.IndexFunc(d.All, func(of prediction) bool { return of.ComputedOn != lead }); host > 0 && c.Leads() {
		t.env.Warn("%s computes on %s, and %s on %s: another number of hosts, or another order of them, will "+
			"have other last bits", c.Name(host), d.All[host].ComputedOn, c.Name(0), lead)
	}
	return nil
}
