package rehearse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/null"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
)

// Rehearsal counts what a run of a plan reserved, moved and computed, where it happened.
type Rehearsal struct {
	DeviceBytes int64        `json:"device_bytes"` // reserved at most, of the device that reserves most
	ByDevice    []int64      `json:"bytes_by_device,omitempty"`
	Host        []plan.Bytes `json:"host"` // by purpose; state is addresses only
	HostBytes   int64        `json:"host_bytes"`
	PinnedBytes int64        `json:"pinned_bytes,omitempty"` // of host memory, registered with a device that has memory of its own

	// Of the last step.
	UploadBytes   int64 `json:"upload_bytes"`
	DownloadBytes int64 `json:"download_bytes"`
	PeerBytes     int64 `json:"peer_bytes,omitempty"` // from device to device
	SentBytes     int64 `json:"sent_bytes,omitempty"` // to other hosts
	ReceivedBytes int64 `json:"received_bytes,omitempty"`
	MatMulFLOPs   int64 `json:"matmul_flops"`
	// AttentionFLOPs counts a micro-batch as one document.
	AttentionFLOPs   int64 `json:"attention_flops"`
	DiskReadBytes    int64 `json:"disk_read_bytes"`    // whole blocks
	DiskWrittenBytes int64 `json:"disk_written_bytes"` // whole blocks
	// What need not be read since it was in staging memory still, and what need not be written since it was replaced
	// there: that depends on who comes first. The plan counts it as read and written.
	DiskSparedReadBytes  int64 `json:"disk_spared_read_bytes"`
	DiskSparedWriteBytes int64 `json:"disk_spared_write_bytes"`

	StepSeconds float64 `json:"step_sec"` // of the engine itself: what it costs to issue a step
}

// Steps runs some steps of a plan for real, but on devices that count instead of computing and with state that is
// only addresses, so that a model of any size rehearses on any machine, and then flushes. It fails where the run
// differs from the plan.
func Steps(p *plan.Plan, steps int) (r Rehearsal, err error) {
	if steps < 2 {
		return r, blame.BadRequest(fmt.Errorf("rehearse: %d steps; the second one is the first that repeats itself, so give 2 or more", steps))
	}
	accounts := hostmem.New()
	others := &rehearsedPeers{hosts: p.Cluster.Count()}
	devices, engine, disk, end, err := rehearsal(p, nil, others, accounts)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	batch := emptyBatch(p)
	var before []null.Counts
	var moved store.Traffic // before the last step
	for step := range steps {
		before = countsOf(devices)
		if moved, err = settled(disk); err != nil {
			return r, err
		}
		others.sent.Store(0)
		others.received.Store(0)
		begin := time.Now()
		if _, err := engine.Step(context.Background(), batch, emptyUpdate(p, step+1)); err != nil {
			return r, err
		}
		r.StepSeconds = time.Since(begin).Seconds()
	}
	r.SentBytes, r.ReceivedBytes = others.sent.Load(), others.received.Load()
	r.count(before, countsOf(devices), accounts, p.Unified)
	after, err := settled(disk)
	if err != nil {
		return r, err
	}
	r.DiskReadBytes, r.DiskWrittenBytes = after.ReadBytes-moved.ReadBytes, after.WrittenBytes-moved.WrittenBytes
	r.DiskSparedReadBytes = after.SparedReadBytes - moved.SparedReadBytes
	r.DiskSparedWriteBytes = after.SparedWriteBytes - moved.SparedWriteBytes
	if _, err := engine.Flush(context.Background()); err != nil {
		return r, err
	}
	return r, r.compare(p)
}

// Hosts is Rehearse of a plan for host 0 of several, and then of those of the others; by host.
func Hosts(ctx context.Context, p *plan.Plan, steps int) (all []Rehearsal, err error) {
	for host := range p.Cluster.Count() {
		of := p
		if host != p.Cluster.Host {
			if of, err = p.OnHost(ctx, host); err != nil {
				return nil, err
			}
		}
		r, err := Steps(of, steps)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// rehearsedPeers count what passes between a host and the others, which are not there.
type rehearsedPeers struct {
	hosts          int
	sent, received atomic.Int64
}

func (p *rehearsedPeers) Send(_ context.Context, _ int, b []byte) error {
	p.sent.Add(int64(len(b)))
	return nil
}

func (p *rehearsedPeers) Receive(_ context.Context, _ int, b []byte) error {
	p.received.Add(int64(len(b)))
	return nil
}

// Exchange has all hosts give the same.
func (p *rehearsedPeers) Exchange(b []byte) ([][]byte, error) {
	return slices.Repeat([][]byte{b}, p.hosts), nil
}

// countsOf are the counts of devices.
func countsOf(devices []*null.Device) (all []null.Counts) {
	for _, d := range devices {
		all = append(all, d.Counts())
	}
	return all
}

// idle stands for the objective of a plan that has one: it leaves weights as they are.
type idle struct{ needs objective.Needs }

func (idle) Name() string                                        { return "idle" }
func (i idle) Needs() objective.Needs                            { return i.needs }
func (idle) Weigh(*objective.Step) (r objective.Result, _ error) { return r, nil }

// rehearsal makes an engine whose devices count, and whose state is addresses. product is told of each matrix product,
// by the compute lane of its rank; it may be nil, as may the other hosts. end closes all of it but accounts.
func rehearsal(p *plan.Plan, product func(rank int, p device.Product), others stream.Peers,
	accounts *hostmem.Accounts) (
	devices []*null.Device, engine *stream.Engine, disk *store.Disk, end func() error, err error,
) {
	var made []func() error
	end = func() error {
		var err error
		for _, f := range slices.Backward(made) {
			err = errors.Join(err, f())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	var computes []device.Device
	for rank := range p.Ranks() {
		o := null.Options{Name: "rehearsal", Unified: p.Unified}
		if product != nil {
			o.Product = func(p device.Product) { product(rank, p) }
		}
		d := null.New(o)
		devices, computes = append(devices, d), append(computes, d)
	}
	host := devices[0]
	if !p.Unified {
		host = null.New(null.Options{Name: "rehearsal's host", Unified: true})
	}
	state, disk, err := stream.OpenStore(p, stream.StoreOptions{Accounts: accounts, AddressOnly: true})
	if err != nil {
		return nil, nil, nil, end, err
	}
	made = append(made, state.Close)
	config := stream.Config{Plan: p, Devices: computes, Host: host, Store: state, Accounts: accounts, AddressOnly: true,
		Peers: others}
	if p.Outputs.Objective {
		config.Objective = idle{objective.Needs{TopK: p.Outputs.TopK, Entropies: p.Outputs.Entropies}}
	}
	engine, err = stream.New(config)
	if err != nil {
		return nil, nil, nil, end, err
	}
	made = append(made, engine.Close)
	rows, err := accounts.Reserve(plan.RowsPurpose, batch.Bytes(p.Whole.StepPositions()), hostmem.AddressOnly)
	if err != nil {
		return nil, nil, nil, end, err
	}
	made = append(made, rows.Close)
	return devices, engine, disk, end, nil
}

// settled waits until all that was written is on the disk, and returns the traffic; without a disk, none.
func settled(disk *store.Disk) (store.Traffic, error) {
	if disk == nil {
		return store.Traffic{}, nil
	}
	if err := disk.Sync(context.Background()); err != nil {
		return store.Traffic{}, err
	}
	return disk.Traffic(), nil
}

// emptyUpdate is an update like that of any run.
func emptyUpdate(p *plan.Plan, step int) stream.Update {
	u := stream.Update{Step: step, AdamW: optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}, LR: 1e-5}
	if !p.Outputs.NoClip {
		u.MaxGradNorm = 1
	}
	return u
}

// emptyBatch is a batch of documents as long as a sequence, all of which counts. Each group of micro-batches has the
// same tokens: as many different ones as a plan counts, spread evenly over the vocabulary.
func emptyBatch(p *plan.Plan) *stream.Batch {
	n, tokens, vocab := p.Whole, p.CohortTokens(), p.Model.Vocab
	b := &stream.Batch{Targets: n.StepPositions()}
	for m := range n.CohortMicros() {
		mb, row := batch.New(n.Positions()), make([]int32, n.SequenceLen)
		for first := 0; first < n.Positions(); first += n.SequenceLen {
			for i := range row {
				row[i] = int32((m*n.Positions() + first + i) % tokens * vocab / tokens)
			}
			mb.SetDocument(first, row)
		}
		clear(mb.Targets)
		b.Micro = append(b.Micro, mb)
	}
	b.Micro = slices.Repeat(b.Micro, n.CohortCount())
	return b
}

// count takes what happened between two counts of the devices, and what is reserved. Each device has all pinned memory
// registered.
func (r *Rehearsal) count(before, after []null.Counts, accounts *hostmem.Accounts, unified bool) {
	for i, then := range before {
		now := &after[i]
		r.DeviceBytes = max(r.DeviceBytes, now.AllocatedPeakBytes)
		if len(after) > 1 {
			r.ByDevice = append(r.ByDevice, now.AllocatedPeakBytes)
		}
		if !unified {
			r.PinnedBytes = max(r.PinnedBytes, now.RegisteredBytes)
		}
		r.UploadBytes += now.HostToDeviceBytes - then.HostToDeviceBytes
		r.DownloadBytes += now.DeviceToHostBytes - then.DeviceToHostBytes
		r.PeerBytes += now.PeerBytes - then.PeerBytes
		for name, op := range now.Ops {
			flops := op.FLOPs - then.Ops[name].FLOPs
			if strings.HasPrefix(name, "Attention") {
				r.AttentionFLOPs += flops
			} else {
				r.MatMulFLOPs += flops
			}
		}
	}
	for _, u := range accounts.Usage() {
		if u.Bytes > 0 {
			r.Host = append(r.Host, plan.Bytes{Purpose: u.Purpose, Bytes: u.Bytes})
			r.HostBytes += u.Bytes
		}
	}
}

// sumsInPlace are the bytes of sums that a step copies for other hosts from a device without a link: the plan counts
// them as traffic of the host's memory, and the device as downloaded.
func sumsInPlace(p *plan.Plan) (bytes int64) {
	if !p.Bound() || !p.Cluster.Several() {
		return 0
	}
	for _, op := range p.Schedule(plan.Steady).Ops {
		if op.Do == plan.DoMove && op.Writes[0].What == plan.CohortSum {
			bytes += p.SumBytes(op.Part)
		}
	}
	return bytes
}

// compare holds the rehearsal to the plan.
func (r *Rehearsal) compare(p *plan.Plan) error {
	differ := func(what string, got, want int64) error {
		if got == want {
			return nil
		}
		return fmt.Errorf("rehearse: %s: the run has %d, the plan %d; this is a bug", what, got, want)
	}
	planned := map[string]int64{} // state and other memory of the host may share a purpose
	for _, b := range slices.Concat(p.State, p.Host) {
		planned[b.Purpose] += b.Bytes
	}
	for _, b := range r.Host { // the driver's own memory and the program's are not rehearsed
		if err := differ("bytes of "+b.Purpose, b.Bytes, planned[b.Purpose]); err != nil {
			return err
		}
	}
	for rank, bytes := range r.ByDevice {
		if err := differ(fmt.Sprintf("bytes of device %d", rank), bytes, p.RankBytes(rank)); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"device bytes", r.DeviceBytes, p.DeviceBytes},
		{"bytes of pinned memory", r.PinnedBytes, p.PinnedBytes},
		{"uploaded bytes", r.UploadBytes, p.Predicted.UploadBytes},
		{"downloaded bytes", r.DownloadBytes, p.Predicted.DownloadBytes + sumsInPlace(p)},
		{"bytes copied from device to device", r.PeerBytes, p.Predicted.PeerBytes},
		{"bytes sent to other hosts", r.SentBytes, p.Predicted.SentBytes},
		{"bytes received from other hosts", r.ReceivedBytes, p.Predicted.ReceivedBytes},
		{"bytes read from disk", r.DiskReadBytes + r.DiskSparedReadBytes, p.Predicted.DiskReadBytes},
		{"bytes written to disk", r.DiskWrittenBytes + r.DiskSparedWriteBytes, p.Predicted.DiskWrittenBytes},
	} {
		if err := differ(c.what, c.got, c.want); err != nil {
			return err
		}
	}
	if p.Numerics.MicroBatch == 1 { // otherwise attention sees shorter documents than are counted
		return differ("floating-point operations", r.MatMulFLOPs+r.AttentionFLOPs, p.Predicted.FLOPs)
	}
	return nil
}
