package plan_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
)

// onDrives is a request whose state goes to drives with these rates, of which each has room for a number of bytes.
func onDrives(t errorer, rates []plan.DriveRates, room ...int64) plan.Request {
	r := long(t)
	moving := newPlan(t, r.Model, r.Numerics).With(moving(r.Model, 1))
	r.HostBytes, r.DeviceBytes = moving.HostBytes-savedInputs(moving.Host)/2, moving.DeviceBytes
	r.Machine.Drives = rates
	r.Machine.DiskReadBytesPerSec, r.Machine.DiskWriteBytesPerSec = 0, 0
	for _, d := range rates {
		r.Machine.DiskReadBytesPerSec += d.ReadBytesPerSec
		r.Machine.DiskWriteBytesPerSec += d.WriteBytesPerSec
	}
	paths := []string{"/a", "/b", "/c"}[:len(rates)]
	r.DealByRate(paths, append(room, make([]int64, len(rates)-len(room))...))
	return r
}

// A plan has the bytes of each drive as its store reserves them, and a step that waits for the disk is as much faster
// as its drives are together.
func TestPlanForDrives(t *testing.T) {
	slow := plan.DriveRates{ReadBytesPerSec: 1e6, WriteBytesPerSec: 1e6} // so that steps wait for nothing else
	fast := plan.DriveRates{ReadBytesPerSec: 3e6, WriteBytesPerSec: 3e6}
	one, err := plan.New(context.Background(), onDrives(t, []plan.DriveRates{slow}))
	if err != nil {
		t.Fatal(err)
	}
	if one.ByDrive != nil || len(one.Placement.Drives) > 1 {
		t.Errorf("of one drive: %v of %v", one.ByDrive, one.Placement.Drives)
	}
	for name, c := range map[string]struct {
		rates  []plan.DriveRates
		shares []int
		times  float64 // as fast as one
	}{
		"two":              {[]plan.DriveRates{slow, slow}, []int{50, 50}, 2},
		"two of two rates": {[]plan.DriveRates{slow, fast}, []int{25, 75}, 4},
		"three":            {[]plan.DriveRates{slow, slow, slow}, []int{34, 33, 33}, 3},
	} {
		r := onDrives(t, c.rates)
		p, err := plan.New(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.Placement.Drives, c.shares) {
			t.Errorf("%s: shares are %v, want %v", name, p.Placement.Drives, c.shares)
		}
		onDisk := p.InputExtents()
		for _, spec := range p.Extents() {
			if p.OnDisk(spec.ID) {
				onDisk = append(onDisk, spec)
			}
		}
		var all int64
		for _, n := range p.ByDrive {
			all += n
		}
		if want := store.DriveBytes(onDisk, p.Deal(), plan.DiskWorkers); !slices.Equal(want, p.ByDrive) ||
			all != p.DiskBytes {
			t.Errorf("%s: %v bytes, %d in all, want %v", name, p.ByDrive, p.DiskBytes, want)
		}
		for i, n := range p.ByDrive {
			if share := 100 * float64(n) / float64(all); math.Abs(share-float64(c.shares[i])) > 5 {
				t.Errorf("%s: drive %d has %.1f%% of the bytes, and its share is %d", name, i, share, c.shares[i])
			}
		}
		if times := one.Predicted.StepSeconds / p.Predicted.StepSeconds; times < 0.75*c.times || times > 1.15*c.times {
			t.Errorf("%s: %.2f times as fast as one drive, want about %.0f", name, times, c.times)
		}
		text := p.Explain(r.Device, r.Machine, p.Forecast(r.Machine, r.Device, 0))
		if !strings.Contains(text, "state on disk is dealt to "+fmt.Sprint(len(c.rates))+" drives: ") ||
			!strings.Contains(text, " in /b") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// A drive that is too small for its rate's share is refused by name, and gets what it has room for where the request
// asks for that: then all wait for the others, and the prediction says so.
func TestDrivesWithoutRoom(t *testing.T) {
	rates := []plan.DriveRates{{ReadBytesPerSec: 1e6, WriteBytesPerSec: 1e6}, {ReadBytesPerSec: 1e6,
		WriteBytesPerSec: 1e6}}
	even, err := plan.New(context.Background(), onDrives(t, rates))
	if err != nil {
		t.Fatal(err)
	}
	room := []int64{1 << 40, even.DiskBytes / 5}
	r := onDrives(t, rates, room...)
	_, err = plan.New(context.Background(), r)
	if err == nil {
		t.Fatal("half of the state fits where a fifth has room")
	}
	oneLine(t, err, "memory.path", "/b", "memory.host")
	r.DealByRoom([]string{"/a", "/b"}, room, even.DiskBytes*3/2) // more staging memory has more go to disk
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if p.ByDrive[1] > room[1] || p.ByDrive[1] < room[1]/2 {
		t.Errorf("%v bytes, with room for %v", p.ByDrive, room)
	}
	if times := p.Predicted.StepSeconds / even.Predicted.StepSeconds; times < 1.4 || times > 2.2 {
		t.Errorf("with most of it on one drive a step takes %.2f times as long as with halves", times)
	}
}

// Shares are percents of the rates, and drives are filled before others take more than their rates' share.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		rates []float64
		want  []int
	}{{[]float64{1, 1}, []int{50, 50}}, {[]float64{1, 1, 1}, []int{34, 33, 33}}, {[]float64{7, 2}, []int{78, 22}},
		{[]float64{1, 0}, []int{100, 0}}, {[]float64{1e9, 1}, []int{100, 0}}} {
		if got := plan.PercentsOf(c.rates); !slices.Equal(got, c.want) {
			t.Errorf("shares of %v are %v, want %v", c.rates, got, c.want)
		}
	}
	for _, c := range []struct {
		rates []float64
		room  []int64
		bytes float64
		want  []float64
	}{
		{[]float64{1, 1}, []int64{100, 100}, 100, []float64{50, 50}},
		{[]float64{1, 1}, []int64{100, 20}, 100, []float64{80, 20}},
		{[]float64{1, 1}, []int64{100, 20}, 120, []float64{100, 20}},
		{[]float64{3, 1, 1}, []int64{30, 100, 100}, 90, []float64{30, 30, 30}},
		{[]float64{3, 1, 1}, []int64{30, 10, 100}, 90, []float64{30, 10, 50}},
	} {
		got := plan.Fill(c.rates, c.room, c.bytes)
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 1e-9 {
				t.Errorf("%v bytes by rates %v with room %v: %v, want %v", c.bytes, c.rates, c.room, got, c.want)
				break
			}
		}
	}
}

// The wear of several drives is that of the one that is written most, and checkpoints copy what is on drives that they
// are not on.
func TestWearOfDrives(t *testing.T) {
	p, err := plan.New(context.Background(), onDrives(t, []plan.DriveRates{{ReadBytesPerSec: 1e6, WriteBytesPerSec: 1e6},
		{ReadBytesPerSec: 3e6, WriteBytesPerSec: 3e6}}))
	if err != nil {
		t.Fatal(err)
	}
	step := p.Predicted.DiskWrittenBytes
	linked := p.WearOf(1000, 0, []bool{true, true}, trace.RatingOf(0))
	if linked.RunBytes != 1000*step || linked.StepDriveBytes != step*3/4 ||
		linked.RunDriveBytes != 1000*linked.StepDriveBytes ||
		linked.Share != float64(linked.RunDriveBytes)/600e12 || math.Abs(linked.DrivePart-0.75) > 1e-9 {
		t.Errorf("%+v, of %d bytes a step", linked, step)
	}
	if text := linked.String(); !strings.Contains(text, "of it to the drive that gets most: ") {
		t.Error(text)
	}
	few, many := p.WearOf(1, 1000, []bool{true, false}, trace.RatingOf(0)), p.WearOf(1, 1000, []bool{true, true},
		trace.RatingOf(0))
	none := p.WearOf(1, 1000, []bool{false, false}, trace.RatingOf(0))
	if few.SaveBytes < many.SaveBytes || none.SaveBytes < few.SaveBytes || few.RunDriveBytes < 1000*few.SaveBytes {
		t.Errorf("%+v where one is copied, %+v where none is, %+v where both are", few, many, none)
	}
}
