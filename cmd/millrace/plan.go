package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/rehearse"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

type planCmd struct {
	runFile
	Model      string `placeholder:"DIR" help:"Plan for this model with the other keys of the run file, or with the defaults without one; weights and data are not needed."`
	Machine    string `complete:"MACHINE" placeholder:"NAME" help:"Plan for this machine instead of this computer, or for the one that a file describes; an unknown name lists the names."`
	Devices    int    `placeholder:"N" help:"Plan for N GPUs in the host of --machine instead of as many as it has."`
	Hosts      int    `placeholder:"N" help:"Plan for N such machines that share each step."`
	Network    string `complete:"NETWORK" placeholder:"NAME" help:"Network between the hosts, such as 100Gb."`
	MachineOut string `placeholder:"FILE" help:"Write the machine of --machine as a file to edit, and plan nothing."`
	Shape      string `complete:"SHAPE" placeholder:"NAME" help:"Plan for this published shape instead of a model; needs no files. An unknown name lists the names."`
	TBW        string `name:"tbw" placeholder:"SIZE" help:"What the drive is rated to have written in its life, such as 600TB."`
	Stream     string `default:"auto" enum:"auto,always" help:"Blocks whose weights stay on the device between visits: as the plan sees fit (auto), or none (always), as bench has it."`
	Rehearse   bool   `help:"Also run three steps of the plan with devices that only count and state that is only addresses; fails where a byte differs from the plan."`
	Schedule   bool   `help:"Print the steps as lists of operations instead: the first one, and one of those that follow."`
	Why        bool   `help:"Also tell what was tried, where each try ran out of memory, and what another gigabyte would buy."`
	Trace      string `placeholder:"FILE" help:"Write the simulated step as a Chrome trace; millrace trace draws it."`
	JSON       bool   `help:"Print the plan as JSON, as a run writes it to plan.json."`

	ServerRate float64 `placeholder:"N" help:"Tokens a second of rl.sampler's server, which a plan cannot know."`
}

func (*planCmd) Help() string {
	return `Memory by tier and purpose, what is kept where, and how long a step should take. The prediction uses what
"millrace probe" measured, else a guess that says so. A plan that does not fit names the number to change and ends
with status 2. With --model or --shape no run file is read, unless one is named.

Examples:

  millrace plan run.yaml memory.device=1GiB
  millrace plan --model models/qwen3-8b sequence_len=4096 batch_tokens=65536
  millrace plan --shape qwen2.5-14b --machine rtx3090-pc-24gb-64gb --rehearse
  millrace plan --shape llama-3-70b --machine h100-sxm --hosts 4 --network 100Gb batch_tokens=131072

The second one needs only config.json, the last two nothing. Rates of named machines are scaled data-sheet values.`
}

// planGCPercent is for a search that makes much garbage in a small heap, in a process whose memory is in no plan:
// with gcPercent half of its time goes to collecting.
const planGCPercent = 400

// Run plans.
func (c *planCmd) Run(p *program) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(planGCPercent)
	}
	if c.MachineOut != "" {
		return c.writeMachine(p)
	}
	config, err := c.read()
	if err != nil {
		return err
	}
	o := verbs.PlanOptions{Env: p.env, Machine: c.Machine, Shape: c.Shape, Devices: c.Devices,
		Hosts: c.Hosts, Network: c.Network, StreamAll: c.Stream == "always", Quiet: c.JSON,
		ServerPerSec: c.ServerRate}
	if c.Devices < 0 || c.Devices > device.MaxDevices || c.Devices > 0 && c.Machine == "" {
		return badFlag("--devices %d: write a number from 1 to %d, with --machine; for this computer, name "+
			"devices in the run file", c.Devices, device.MaxDevices)
	}
	if c.Hosts < 0 || c.Network != "" && c.Hosts < 2 {
		return badFlag("--hosts %d: write the number of hosts, from 2 on where --network is given", c.Hosts)
	}
	if c.TBW != "" {
		rated, err := runfile.ParseBytes(c.TBW)
		if err != nil || rated.N == 0 {
			return badFlag("--tbw %q: write what the drive is rated for, such as 600TB", c.TBW)
		}
		o.RatedWriteBytes = rated.N
	}
	var traced *vfs.Output
	if c.Trace != "" { // a file that cannot be made is an error before the search
		if traced, err = vfs.CreateOutput(c.Trace); err != nil {
			return blame.BadRequest(fmt.Errorf("--trace: %w", err))
		}
		defer traced.Abort()
	}
	made, err := verbs.PlanFor(p.ctx, config, o)
	if err != nil {
		return err
	}
	if traced != nil {
		about := trace.About{Model: c.Model + c.Shape, Device: cmp.Or(c.Machine, made.Machine.Name)}
		if about.Model == "" {
			about.Model = config.Model
		}
		err := made.Plan.Trace(made.Machine, made.Device, about).WriteChrome(traced)
		if err == nil {
			err = traced.Commit()
		}
		if err != nil {
			return fmt.Errorf("--trace: %w", err)
		}
	}
	out := planResult{Plan: made.Plan, Machine: made.Machine, Sources: made.Sources, Forecast: made.Forecast,
		AvailableBytes: made.AvailableBytes, Hosts: made.Hosts, Faster: made.Faster, Larger: made.Larger,
		LessWritten: made.LessWritten}
	if c.Rehearse {
		all, err := rehearse.Hosts(p.ctx, made.Plan, 3)
		if err != nil {
			return err
		}
		out.Rehearsed, out.RehearsedOthers = &all[0], all[1:]
	}
	if c.Why {
		ctx, end := p.ctx, func() {}
		if !c.JSON {
			ctx, end = p.env.ShowSearch(ctx)
		}
		out.Why, err = made.Plan.Why(ctx)
		if end(); err != nil {
			return err
		}
	}
	switch {
	case c.JSON:
		return p.printJSON(out)
	case c.Schedule:
		if made.Plan.Placement.Twice {
			return p.printf("every step, for the norm\n\n%s\nand for updates\n\n%s", made.Plan.Schedule(plan.FirstHalf),
				made.Plan.Schedule(plan.SecondHalf))
		}
		return p.printf("first step\n\n%s\nevery other step\n\n%s\nend\n\n%s", made.Plan.Schedule(plan.Prologue), made.Plan.Schedule(plan.Steady), made.Plan.Schedule(plan.Flush))
	}
	text := made.String()
	if out.Why != nil {
		text += "\n" + out.Why.String()
	}
	if r := out.Rehearsed; r != nil {
		text += fmt.Sprintf("\nrehearsed   %s on the device, %s on the host, %s to the device and %s back, %s read from disk and %s written: as planned; the engine takes %s to issue a step\n",
			plan.FormatBytes(r.DeviceBytes), plan.FormatBytes(r.HostBytes), plan.FormatBytes(r.UploadBytes), plan.FormatBytes(r.DownloadBytes),
			plan.FormatBytes(r.DiskReadBytes), plan.FormatBytes(r.DiskWrittenBytes), plan.FormatSeconds(r.StepSeconds))
		if n := len(out.RehearsedOthers); n > 0 {
			text += fmt.Sprintf("            %s to other hosts and %s from them; the other hosts (%d) "+
				"are as planned for them, too\n",
				plan.FormatBytes(r.SentBytes), plan.FormatBytes(r.ReceivedBytes), n)
		}
	}
	return p.printf("%s", text)
}

// writeMachine writes a machine as a file to edit.
func (c *planCmd) writeMachine(p *program) error {
	if c.Machine == "" {
		return badFlag("--machine-out: name the machine to begin with, such as --machine rtx4090-pc-256gb")
	}
	named, err := verbs.MachineToPlan(c.Machine)
	if err != nil {
		return blame.BadRequest(err)
	}
	out, err := vfs.CreateOutput(c.MachineOut)
	if err != nil {
		return badFlag("--machine-out: %w", err)
	}
	defer out.Abort()
	if _, err = io.WriteString(out, runfile.MachineText(named)); err == nil {
		err = out.Commit()
	}
	if err != nil {
		return fmt.Errorf("--machine-out: %w", err)
	}
	return p.printf("%s: edit it, and plan with --machine %s\n", c.MachineOut, c.MachineOut)
}

// planResult is the plan as JSON: what a run writes to plan.json, and what it was made from and means.
type planResult struct {
	*plan.Plan
	Machine  plan.Machine  `json:"machine"`
	Sources  []string      `json:"sources,omitempty"`
	Forecast plan.Forecast `json:"forecast"`
	// AvailableBytes is the host memory that this machine has for the run, where the plan is for this machine.
	AvailableBytes int64 `json:"available_bytes,omitempty"`
	// Hosts says what the plan, which is for host 0, means for all hosts.
	Hosts *verbs.HostsPlanned `json:"hosts,omitempty"`
	// Faster is the other precision.compute, where this machine's CPU is measured to be faster with it.
	Faster *verbs.FasterCompute `json:"faster_compute,omitempty"`
	// Larger is the batch_tokens from which on a step is bound by arithmetic.
	Larger *plan.LargerBatch `json:"larger_batch,omitempty"`
	// LessWritten is the change of one key that has a run write less whose steps wait for the disk.
	LessWritten *plan.LessWritten   `json:"less_written,omitempty"`
	Rehearsed   *rehearse.Rehearsal `json:"rehearsed,omitempty"`
	// RehearsedOthers are those of the hosts after the first, by plans of their own.
	RehearsedOthers []rehearse.Rehearsal `json:"rehearsed_others,omitempty"`
	Why             *plan.Why            `json:"why,omitempty"`
}

// read reads the run file or, for a model alone, makes one with data that a plan does not look at.
func (c *planCmd) read() (*runfile.Config, error) {
	if c.Model != "" && c.Shape != "" {
		return nil, badFlag("--model and --shape: give one of them")
	}
	if c.Model == "" && c.Shape == "" {
		return c.runFile.read()
	}
	file, settings, err := c.arguments()
	if err != nil {
		return nil, err
	}
	model := c.Model + c.Shape // a shape's name stands for it in messages
	if file == "" {
		config, err := runfile.ReadToPlan(model, c.Machine != "", settings)
		return config, blame.BadRequest(err)
	}
	return readConfig(file, append([]string{runfile.Setting("model", model)}, settings...))
}
