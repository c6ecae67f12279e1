package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// networkShare is the part of a network's raw rate that is taken to arrive, over RDMA or several TCP connections, in
// each direction while as much goes the other way: an assumption. 100 Gbit/s give 11 GB/s.
const networkShare = 0.88

// mostGbit bounds the rates.
const mostGbit = 1e5

// Networks lists common networks, by their raw rates, as Network reads them.
func Networks() []string { return []string{"1Gb", "10Gb", "25Gb", "40Gb", "100Gb", "200Gb", "400Gb"} }

// Network is the rate of a network for Machine.NetworkBytesPerSec: of a raw rate in Gbit/s, such as 100Gb, a share
// arrives; a rate in bytes, such as 11GB/s, counts as it is. The case of a B alone tells bits from
// bytes. An error lists the names, or says which of both to write.
func Network(name string) (bytesPerSec float64, err error) {
	raw, unit := name, ""
	if i := strings.IndexFunc(name, unicode.IsLetter); i > 0 {
		raw, unit = name[:i], name[i:]
	}
	const gigabit = 1e9 / 8
	perSec := 0.0
	switch strings.Replace(unit, "g", "G", 1) {
	case "Gb", "Gb/s", "Gbps", "Gbit", "Gbit/s":
		perSec = networkShare * gigabit
	case "GB/s":
		perSec = 8 * gigabit
	case "GB":
		return 0, fmt.Errorf("network %q: write %sGb for its gigabits per second, or %[2]sGB/s for gigabytes per "+
			"second that arrive", name, raw)
	}
	rate, err := strconv.ParseFloat(raw, 64)
	if rate *= perSec; err == nil && rate > 0 && rate <= mostGbit*gigabit {
		return rate, nil
	}
	return 0, unknownName("network", name, Networks())
}

// HostTraffic has the bytes that pass between a host and the others in a step.
type HostTraffic struct {
	SentBytes     int64 `json:"sent_bytes,omitempty"`
	ReceivedBytes int64 `json:"received_bytes,omitempty"`
}

// Traffic is the traffic of each host in a step that updates; nil where one host is alone.
func (p *Plan) Traffic() []HostTraffic {
	if !p.Cluster.Several() {
		return nil
	}
	hosts, own := p.Cluster.Hosts, int64(p.Numerics.CohortCount())
	all := make([]HostTraffic, hosts)
	for part := range p.Model.Parts {
		if !p.Trained(part) {
			continue
		}
		sums, weights, owner := own*p.sentSumBytes(part), p.weightBytes(part), p.Owner(part)
		if p.Outputs.NoUpdates {
			weights = 0
		}
		for h := range all {
			if h == owner {
				continue
			}
			all[h].SentBytes += sums
			all[h].ReceivedBytes += weights
			all[owner].SentBytes += weights
			all[owner].ReceivedBytes += sums
		}
	}
	cohort := wholeBalance(Host)
	cohort.Cohort = 0
	counts := own * p.balanceBytes(&cohort) // 0 without a load-balancing loss
	for h := range all {
		all[h].SentBytes += int64(hosts-1) * counts
		all[h].ReceivedBytes += int64(hosts-1) * counts
	}
	return all
}

// sentSumElems is the number of elements in a message with a cohort's sum of a part. Of a table it is known when the
// tokens are, and is planned for as many tokens as a cohort can have, spread evenly over the vocabulary: in all tiles
// together no cohort sends more.
func (p *Plan) sentSumElems(part int) int64 {
	of := &p.Model.Parts[part]
	if !p.SendsRows(part) {
		return of.Layout.StateElems
	}
	n, vocab, table := int64(p.CohortTokens()), int64(p.Model.Vocab), of.Layout.Fields[0].Shape
	before := func(row int) int64 { return (int64(row)*n + vocab - 1) / vocab } // tokens of the rows before one
	return (before(of.FirstRow+table[0]) - before(of.FirstRow)) * int64(table[1])
}

// sentSumBytes is the length of that message.
func (p *Plan) sentSumBytes(part int) int64 {
	return p.sentSumElems(part) * p.Numerics.SumType().Bytes()
}

// hostsText says how a step is divided between hosts and what passes between them; empty where one is alone.
func (p *Plan) hostsText() string {
	traffic := p.Traffic()
	if traffic == nil {
		return ""
	}
	var sent, received []int64
	for _, t := range traffic {
		sent, received = append(sent, t.SentBytes), append(received, t.ReceivedBytes)
	}
	return fmt.Sprintf("hosts: each of %d computes %s of a step, and updates its share of the parts; it sends %s "+
		"a step and receives %s", p.Cluster.Hosts, count(p.Numerics.MicroBatches, "micro-batch"), spanText(sent),
		spanText(received))
}

// networkText says how much of the network's time computing hides.
func networkText(m Machine, q Prediction) string {
	if m.NetworkBytesPerSec == 0 {
		return "the network's rate is not known, and messages are taken to last no time"
	}
	return fmt.Sprintf("during %.0f%% of that time a device computes", 100*q.NetworkHidden)
}

// spanText is the least and the most of some sizes, for people.
func spanText(sizes []int64) string {
	least, most := FormatBytes(slices.Min(sizes)), FormatBytes(slices.Max(sizes))
	if least == most {
		return most
	}
	return least + " to " + most
}

// awaitOthers has each operation that receives wait, in a simulation of this host alone, for what tells when the other
// one may have sent. Hosts do the same at the same time, each with its own cohorts and parts. So a sum is there when
// this host has made the sum of its own cohort of that number (or what it has of its choices of experts); and the n-th
// part that another host updates when this host has updated its own n-th, or the last one that it emits before it
// receives. This leaves out that hosts differ, that a sender's lane may be busy with others, and how long a message is
// under way.
func (p *Plan) awaitOthers(ops []Op, mem *scheduleMemory) {
	type sum struct{ part, cohort int } // by its number on its host; counts of experts have no part
	made, cohorts := map[sum]int{}, p.Numerics.CohortCount()
	await := func(op *Op, other int) {
		first := len(mem.waits)
		mem.waits = append(append(mem.waits, op.After...), other)
		op.After = mem.waits[first:len(mem.waits):len(mem.waits)]
	}
	var updates []int                       // of this host
	updated := make([]int, p.Cluster.Hosts) // parts whose weights have come, by host
	for i := range ops {
		op := &ops[i]
		switch {
		case op.Do == DoUpdate:
			updates = append(updates, i)
		case op.Do != DoReceive:
			if len(op.Writes) > 0 && ofCohort(op.Writes[0]) && op.Writes[0].At == Host {
				made[sum{op.Part, op.Writes[0].Cohort % cohorts}] = i
			}
		case ofCohort(op.Writes[0]):
			await(op, made[sum{op.Part, op.Writes[0].Cohort % cohorts}])
		default:
			n := min(updated[op.Host], len(updates)-1)
			updated[op.Host]++
			if n >= 0 {
				await(op, updates[n])
			}
		}
	}
}

// ofCohort reports whether it is something that each cohort has, and hosts send each other.
func ofCohort(o Operand) bool { return o.What == CohortSum || o.What == Balance }
