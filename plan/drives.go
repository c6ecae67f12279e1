package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/store"
)

// State on disk may be on several drives, which then work at once. Its pieces are dealt to them by shares that the
// request has (store.Deal), so that each drive moves its share of the bytes of any lane. Shares that follow the rates
// have all drives done at the same time, and the rates add up. A drive that is smaller than that takes what it has room
// for. A deal changes no bit.

// MaxDrives bounds the drives of a run.
const MaxDrives = 16

// Drive is one of several that have the state on disk.
type Drive struct {
	Path string // a directory on it, for messages
	// Share is the part of all pieces that it has, out of the sum of all drives' shares.
	Share int
	// Bytes bounds the state on it; 0: only the sum of all drives is bounded, by Request.DiskBytes.
	Bytes int64
}

// DriveRates are the rates of one of several drives, while it works alone.
type DriveRates struct {
	Path             string  `json:"path,omitempty"` // a directory on the file system that was measured
	ReadBytesPerSec  float64 `json:"read_bytes_per_sec"`
	WriteBytesPerSec float64 `json:"write_bytes_per_sec"`
}

// bothWays is the rate of bytes that are each read and written, as those of state are in a step.
func bothWays(read, write float64) float64 {
	if read <= 0 || write <= 0 {
		return max(read, write)
	}
	return 1 / (1/read + 1/write)
}

// driveRates are the rates of n drives, and of all of them together where each works as much of the time as the others.
// Where they are not known one by one, all are alike.
func (m *Machine) driveRates(n int) (each []float64, together float64) {
	each = slices.Repeat([]float64{1}, n)
	if len(m.Drives) != n {
		return each, float64(n)
	}
	var read, write float64
	for i, d := range m.Drives {
		each[i] = bothWays(d.ReadBytesPerSec, d.WriteBytesPerSec)
		read, write = read+d.ReadBytesPerSec, write+d.WriteBytesPerSec
	}
	return each, bothWays(read, write)
}

// shareTotal is the sum of shares: they are percents.
const shareTotal = 100

// percentsOf rounds weights to shares, of which the sum is shareTotal.
func percentsOf(weights []float64) []int {
	var sum float64
	for _, w := range weights {
		sum += w
	}
	shares, left := make([]int, len(weights)), shareTotal
	rest := make([]float64, len(weights))
	for i, w := range weights {
		exact := shareTotal * w / sum
		shares[i] = int(exact)
		rest[i], left = exact-float64(shares[i]), left-shares[i]
	}
	for ; left > 0; left-- {
		most := 0
		for i := range rest {
			if rest[i] > rest[most] {
				most = i
			}
		}
		shares[most]++
		rest[most]--
	}
	return shares
}

// DealByRate has the request deal state on disk to drives in directories, with so much room each (0: no bound), by
// their rates on the machine, which Machine.Drives has in the same order.
func (r *Request) DealByRate(paths []string, room []int64) {
	each, _ := r.Machine.driveRates(len(paths))
	r.deal(paths, room, percentsOf(each))
}

// DealByRoom is DealByRate for state of a number of bytes that some drives have too little room for: those are filled,
// and the others share the rest by their rates. 0 bytes stand for all that there is room for.
func (r *Request) DealByRoom(paths []string, room []int64, bytes int64) {
	each, _ := r.Machine.driveRates(len(paths))
	var all int64
	for _, n := range room {
		all += n
	}
	if bytes == 0 || bytes > all {
		bytes = all
	}
	r.deal(paths, room, percentsOf(fill(each, room, float64(bytes))))
}

// fill divides bytes by rates, as far as there is room.
func fill(rates []float64, room []int64, bytes float64) []float64 {
	divided, full := make([]float64, len(rates)), make([]bool, len(rates))
	for fills := true; fills; {
		left, rate := bytes, 0.0
		for i := range rates {
			if full[i] {
				left -= divided[i]
			} else {
				rate += rates[i]
			}
		}
		fills = false
		for i := range rates {
			if full[i] {
				continue
			}
			if divided[i] = left * rates[i] / rate; divided[i] >= float64(room[i]) {
				divided[i], full[i], fills = float64(room[i]), true, true
				break
			}
		}
	}
	return divided
}

func (r *Request) deal(paths []string, room []int64, shares []int) {
	r.Drives = nil
	for i, path := range paths {
		r.Drives = append(r.Drives, Drive{Path: path, Share: shares[i], Bytes: room[i]})
	}
}

// shares are the shares of the drives; nil for one.
func (c *chooser) shares() (shares []int) {
	for _, d := range c.Drives {
		shares = append(shares, d.Share)
	}
	return shares
}

// Deal says which drive has which piece of the extents on disk.
func (p *Plan) Deal() store.Deal { return store.NewDeal(p.Placement.Drives) }

// drives is the number of drives with state on disk.
func (p *Placement) drives() int { return max(len(p.Drives), 1) }

// diskRates are the rates of a machine's disk for the plan. Several drives have the machine's where each works as much
// of the time as the others; where one has more than its rate's share of the pieces, the others wait for it.
func (p *Plan) diskRates(m *Machine) (read, write float64) {
	kept := 1.0
	each, together := m.driveRates(p.Placement.drives())
	for i, share := range p.Placement.Drives {
		if share > 0 {
			kept = min(kept, each[i]*float64(sum(p.Placement.Drives))/float64(share)/together)
		}
	}
	return kept * m.DiskReadBytesPerSec, kept * m.DiskWriteBytesPerSec
}

func sum(shares []int) (all int) {
	for _, share := range shares {
		all += share
	}
	return all
}

// fitsDrives compares the state on each drive with the room on it.
func (c *chooser) fitsDrives(p *Plan) error {
	for i, bytes := range p.ByDrive[:min(len(p.ByDrive), len(c.Drives))] {
		if d := c.Drives[i]; d.Bytes > 0 && bytes > d.Bytes {
			at := d.Path
			if at == "" {
				at = fmt.Sprintf("drive %d of %d", i+1, len(c.Drives))
			}
			return fmt.Errorf("memory.path: %s of state go to %s, and it has room for %s; free some, name another "+
				"directory, or raise memory.host", FormatBytes(bytes), at, FormatBytes(d.Bytes))
		}
	}
	return nil
}

// DiskRequests is the number of reads and writes that keep all drives with state on disk busy.
func (p *Plan) DiskRequests() int { return p.Placement.requests() }

// drivesText says how state on disk is dealt; empty for one drive.
func (p *Plan) drivesText() string {
	if len(p.ByDrive) == 0 {
		return ""
	}
	var parts []string
	for i, bytes := range p.ByDrive {
		part := FormatBytes(bytes)
		if p.asked != nil && i < len(p.asked.Drives) && p.asked.Drives[i].Path != "" {
			part += " in " + p.asked.Drives[i].Path
		}
		parts = append(parts, part)
	}
	return fmt.Sprintf("state on disk is dealt to %s: %s", count(len(p.ByDrive), "drive"), strings.Join(parts, ", "))
}
