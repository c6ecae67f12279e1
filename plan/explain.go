package plan

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
)

// DeviceName names the devices that compute for people, each of which is dev.
func (p *Plan) DeviceName(dev device.Info) string {
	if ranks := p.Ranks(); ranks > 1 {
		return fmt.Sprintf("%d x %s", ranks, dev.Name)
	}
	return dev.Name
}

// Headline is the plan in a line. guess is why its seconds are one; empty if the machine was measured.
func (p *Plan) Headline(dev device.Info, guess string) string {
	params, _ := p.Model.Params()
	how := "weights streamed through " + count(p.Placement.Rings.Weights, "slot")
	if p.Bound() {
		how = "weights used in place"
	}
	memory := fmt.Sprintf("%s of host memory and %s on the device", FormatBytes(p.HostBytes),
		FormatBytes(p.DeviceTotalBytes()))
	if p.Unified { // the device's is the host's
		memory = FormatBytes(p.ProcessBytes()) + " of memory"
	}
	if guess != "" {
		guess = fmt.Sprintf(" (a guess, since %s: run `millrace probe`)", guess)
	}
	return fmt.Sprintf("%s, %s parameters, %v on %s: %s, %s, about %.2g s a step%s",
		p.Model.Type, FormatCount(params), p.Numerics.Compute, p.DeviceName(dev), how, memory, p.Predicted.StepSeconds,
		guess)
}

// Explain is the plan for people: memory by tier, sizes, what is kept where, the predicted step and what it means for
// the run.
func (p *Plan) Explain(dev device.Info, m Machine, o Forecast) string {
	var b strings.Builder
	params, trained := p.Model.Params()
	n := p.Whole
	fmt.Fprintf(&b, "%s: %s parameters in %s", p.Model.Type, FormatCount(params), count(len(p.Model.Blocks), "block"))
	if active := p.Model.Active(); active < params {
		fmt.Fprintf(&b, ", of which a token uses %s", FormatCount(active))
	}
	if trained < params && trained > 0 {
		fmt.Fprintf(&b, ", of which %s are trained", FormatCount(trained))
	}
	b.WriteString("\n")
	fmt.Fprintf(&b, "device   %s\nmachine  %s\n", p.DeviceName(dev), m.Name)
	if p.Warning != "" {
		fmt.Fprintf(&b, "warning  %s\n", p.Warning)
	}
	groups := ""
	if cohorts := n.CohortCount(); cohorts > 1 {
		groups = fmt.Sprintf(" in %d groups", cohorts)
		if n.NarrowSums() {
			groups += " whose sums are bf16"
		}
	}
	if n.ForwardOnly > 0 {
		groups += fmt.Sprintf(", the last %d of each group not trained", n.ForwardOnly)
	}
	fmt.Fprintf(&b, "step     %d positions: %s of %d x %d%s; %v compute, %v master; head chunk %d, block chunk %d\n\n",
		n.StepPositions(), count(n.MicroBatches, "micro-batch"), n.MicroBatch, n.SequenceLen, groups, n.Compute,
		n.Master, n.HeadChunk, n.BlockRows())

	table := func(tier string, total, budget int64, lists ...[]Bytes) {
		fmt.Fprintf(&b, "%s: %s", tier, FormatBytes(total))
		if budget > 0 {
			fmt.Fprintf(&b, " of a budget of %s", FormatBytes(budget))
		}
		b.WriteString("\n")
		for _, e := range byPurpose(lists...) {
			fmt.Fprintf(&b, "  %11s  %s\n", FormatBytes(e.Bytes), e.Purpose)
		}
	}
	var driver []Bytes
	if p.DeviceDriverBytes > 0 {
		driver = []Bytes{{DriverPurpose, p.DeviceDriverBytes}}
	}
	if p.PageTableBytes > 0 {
		driver = append(driver, Bytes{pageTablesPurpose, p.PageTableBytes})
	}
	tier := "device memory"
	if p.Ranks() > 1 {
		tier = "memory of each device, at most"
	}
	table(tier, p.DeviceTotalBytes(), p.DeviceBudget, p.Device, driver)
	table("host memory", p.HostBytes, p.HostBudget, p.State, p.Host)
	if p.Unified {
		fmt.Fprintf(&b, "memory of both, since this device computes on the host's: %s\n", FormatBytes(p.ProcessBytes()))
	}
	if p.DiskBytes > 0 {
		table("disk space", p.DiskBytes, p.DiskBudget, p.Disk)
	}

	b.WriteString("\n" + strings.Join(p.Choices(), "\n") + "\n\n")
	q := p.Predicted
	fmt.Fprintf(&b, "a step takes about %s s, %.0f tokens/s\n", three(q.StepSeconds), o.TokensPerSec)
	fmt.Fprintf(&b, "what limits it is %s\n", o.Limit)
	for lane := range Lane(Lanes) {
		if sec := q.LaneSeconds[lane]; sec > 0 {
			fmt.Fprintf(&b, "  %-8s busy %7s s  %3.0f%%\n", lane, three(sec), 100*sec/q.StepSeconds)
		}
	}
	if q.ReachSeconds > 0 {
		fmt.Fprintf(&b, "  compute reads and writes host memory over the link for %s s of its time\n", three(q.ReachSeconds))
	}
	for i, d := range q.DeviceSeconds {
		fmt.Fprintf(&b, "  device %d computes for %s s, %.0f%%\n", i, three(d.Compute), 100*d.Compute/q.StepSeconds)
	}
	fmt.Fprintf(&b, "  %s\n", stallText(o.Stalls, q.StepSeconds))
	fmt.Fprintf(&b, "  %s TFLOP executed, %s to the device, %s back", three(float64(q.FLOPs)/1e12),
		FormatBytes(q.UploadBytes), FormatBytes(q.DownloadBytes))
	if q.PeerBytes > 0 {
		fmt.Fprintf(&b, ", %s from device to device", FormatBytes(q.PeerBytes))
	}
	b.WriteString("\n")
	if p.Cluster.Several() {
		fmt.Fprintf(&b, "  %s sent to other hosts, %s received; %s\n", FormatBytes(q.SentBytes),
			FormatBytes(q.ReceivedBytes), networkText(m, q))
	}
	if q.DiskReadBytes+q.DiskWrittenBytes > 0 {
		fmt.Fprintf(&b, "  %s read from disk, %s written\n", FormatBytes(q.DiskReadBytes), FormatBytes(q.DiskWrittenBytes))
	}
	b.WriteString(assumedText(o.Assumed))
	if len(o.Timeline) > 0 {
		b.WriteString("\none step, from left to right\n")
		for _, line := range append(o.Timeline, strings.Split(Legend(o.Timeline), "\n")...) {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	if p.Round != nil {
		b.WriteString("\n" + p.Round.text())
		o.PassSeconds = 0 // the round has it
	}
	b.WriteString("\n" + o.text())
	if p.Wear != nil {
		if text := p.Wear.String(); text != "" {
			fmt.Fprintf(&b, "wear        %s\n", text)
		}
	}
	if p.Space != nil {
		b.WriteString(p.Space.text())
	}
	return b.String()
}

// text says what a plan means for the run.
func (o *Forecast) text() string {
	var b strings.Builder
	if o.Steps > 0 {
		fmt.Fprintf(&b, "run         %d steps take %s\n", o.Steps, FormatSeconds(o.RunSeconds))
	}
	if o.PassSeconds > 0 {
		fmt.Fprintf(&b, "samples     a token of each of %s, which grow together, takes %s: %.3g tokens/s; caches for %s\n",
			count(o.Texts, "text"), FormatSeconds(o.PassSeconds), o.WrittenPerSec, count(o.TextPositions, "position"))
	}
	if o.Eight != nil {
		b.WriteString(o.Eight.text())
	}
	stall := "how long steps wait for it is not known: the disk was not measured"
	if s := o.CheckpointStallSeconds; s != nil {
		stall = "steps wait " + FormatSeconds(*s) + " for it"
		if *s == 0 {
			stall = "no step waits for it"
		}
	}
	fmt.Fprintf(&b, "checkpoint  %s are copied from host memory", FormatBytes(o.CheckpointBytes))
	if o.CheckpointDiskBytes > 0 {
		fmt.Fprintf(&b, ", %s from drives that output_dir is not on", FormatBytes(o.CheckpointDiskBytes))
	}
	fmt.Fprintf(&b, "; %s\n", stall)
	return b.String()
}

// awayTexts names what waits in host memory between visits of groups.
var awayTexts = [nn.Aways]string{"", "outputs of experts", "outputs of experts and the rows they are added to",
	"outputs of experts, the rows they are added to and gradients", "all rows of experts"}

// Choices says in a few lines what is kept for the backward pass, so that it is not computed again, what is streamed
// and what stays.
func (p *Plan) Choices() []string {
	keeps := map[nn.Keep]int{}
	for b := range p.blocks() {
		keeps[p.Keep(b)]++
	}
	var kept []string
	for k, what := range [nn.Keeps]string{"the input alone", "attention's output", "attention's output with gate and up", "everything"} {
		if n := keeps[nn.Keep(k)]; n > 0 {
			kept = append(kept, fmt.Sprintf("%s of %s", what, count(n, "block")))
		}
	}
	text := "kept for backward: " + strings.Join(kept, ", ")
	spilled := 0
	for i := range p.blocks() {
		if p.ActivationsSpill(i) {
			spilled++
		}
	}
	if spilled > 0 {
		text += fmt.Sprintf("; that of %s waits in host memory", count(spilled, "block"))
	}
	switch ranks := p.headRanks(); {
	case p.Model.Scores():
	case ranks > 1:
		times := "twice"
		if p.Placement.KeptLogits {
			times = "once"
		}
		text += fmt.Sprintf("; logits are computed %s, by %d devices with a share of the vocabulary each", times, ranks)
	case p.Placement.HeadAtOnce && p.Outputs.Objective:
		text += "; logits are computed twice, since the objective compares all losses before there are gradients"
	case p.Placement.HeadAtOnce:
		text += "; logits are computed once"
	default:
		text += "; logits are computed twice, a vocabulary tile at a time"
	}
	if away := awayTexts[p.Placement.HeldAway]; away != "" {
		text += "; " + away + " wait in host memory, where the device reads and writes them"
	}
	lines := []string{text}
	for _, text := range []string{p.hostsText(), p.dealText(), p.drivesText()} {
		if text != "" {
			lines = append(lines, text)
		}
	}
	if p.Bound() {
		return append(lines, "weights are used where they are; nothing is streamed")
	}
	resident, updated, passing, onDevice, disk := 0, 0, 0, 0, 0
	for i, part := range p.Model.BlockParts {
		if p.resident(part) {
			resident++
		}
		if p.StateResident(part) {
			updated++
		}
		if p.StatePasses(part) {
			passing++
		}
		if p.savedOnDevice(i) {
			onDevice++
		}
		if p.SavedOnDisk(i) {
			disk++
		}
	}
	if text := p.gradientsText(); text != "" {
		lines = append(lines, text)
	}
	blocks := len(p.Model.BlockParts)
	moves := fmt.Sprintf("streamed: %d of %s through %s; gradients through %s", blocks-resident, count(blocks, "block"),
		count(p.Placement.Rings.Weights, "weight slot"), count(p.Placement.Rings.Gradients, "slot"))
	if n := p.Placement.Rings.Rounded; n > 0 {
		moves += fmt.Sprintf(", and %d for rounded ones", n)
	}
	if p.sharesInputs() {
		moves += fmt.Sprintf("; layer inputs and gradients share %s", count(p.Numerics.MicroBatches+p.Placement.Rings.Inputs, "buffer"))
	}
	if onDevice > 0 {
		moves += fmt.Sprintf("; %s on the device", stay(count(onDevice, "saved input"), onDevice))
	}
	switch head := p.StateResident(p.Model.HeadTiles[0]); {
	case updated > 0 && head:
		moves += fmt.Sprintf("; the device updates %s and the head", count(updated, "block"))
	case updated > 0:
		moves += fmt.Sprintf("; the device updates %s", count(updated, "block"))
	case head:
		moves += "; the device updates the head"
	}
	if passing > 0 {
		moves += fmt.Sprintf("; the state of %s comes to the device to be updated and leaves again", count(passing, "block"))
	}
	if disk > 0 {
		moves += fmt.Sprintf("; %s on disk", stay(count(disk, "saved input"), disk))
	}
	return append(lines, moves)
}

// stay appends "stays" or "stay" to agree with n.
func stay(things string, n int) string {
	if n == 1 {
		return things + " stays"
	}
	return things + " stay"
}
