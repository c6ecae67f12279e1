package cuda_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// Two GPUs share what is pinned of host memory: the driver registers it once, and bytes pass from one GPU to the other
// through it, in the order of an event. The GPU that has pinned it cannot be closed before the other is done with it.
func TestTwoCards(t *testing.T) {
	var registered atomic.Int64
	cards := openCards(t, standin.Options{Cards: 2, Fail: func(call string, _ int) driver.Result {
		switch call {
		case "MemHostRegister":
			registered.Add(1)
		case "MemHostUnregister":
			registered.Add(-1)
		}
		return driver.Success
	}}, ownProducts)
	region, err := hostmem.New().Reserve("rows", 3*hostmem.PageBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, region)
	cards[0].SetPieces(hostmem.PageBytes, hostmem.PageBytes) // the one that pins says how
	var host, mem [2]device.Buffer
	var s [2]device.Stream
	var e [2]device.Event
	for i, d := range cards {
		if host[i], err = d.Register(region); err != nil {
			t.Fatal(err)
		}
		if mem[i], err = d.Alloc("rows", region.Len()); err != nil {
			t.Fatal(err)
		}
		if s[i], err = d.NewStream(fmt.Sprint("lane ", i)); err != nil {
			t.Fatal(err)
		}
		if e[i], err = d.NewEvent(); err != nil {
			t.Fatal(err)
		}
	}
	if n := registered.Load(); n != 3 {
		t.Errorf("%d registrations of 3 pieces, by two devices", n)
	}
	for i := range region.Bytes() {
		region.Bytes()[i] = byte(i * 7 / 3)
	}
	want := string(region.Bytes())
	s[0].Copy(device.Whole(mem[0]), device.Whole(host[0]))
	s[0].Zero(device.Whole(host[0]))
	s[0].Copy(device.Whole(host[0]), device.Whole(mem[0]))
	s[0].Record(e[0])
	s[1].Wait(e[0])
	s[1].Copy(device.Whole(mem[1]), device.Whole(host[1]))
	s[1].Zero(device.Whole(host[1]))
	s[1].Copy(device.Whole(host[1]), device.Whole(mem[1]))
	s[1].Record(e[1])
	if err := e[1].Wait(); err != nil || string(region.Bytes()) != want {
		t.Errorf("after both: %v, the same bytes: %t", err, string(region.Bytes()) == want)
	}
	for name, misuse := range map[string]func(){
		"memory":        func() { s[1].Zero(device.Whole(mem[0])) },
		"pinned memory": func() { s[1].Zero(device.Whole(host[0])) },
	} {
		func() {
			defer func() {
				if p := recover(); !strings.Contains(fmt.Sprint(p), "belongs to another device") {
					t.Errorf("%s of another device: %v", name, p)
				}
			}()
			misuse()
		}()
	}
	fail(s[0], fmt.Errorf("device cuda:0 is out of order"))
	s[0].Record(e[0])
	s[1].Wait(e[0])
	oneLine(t, s[1].Sync(), "device cuda:0 is out of order")

	for _, c := range []interface{ Close() error }{e[0], e[1], mem[0], host[0]} {
		mustClose(t, c)
	}
	_, _ = s[0].Close(), s[1].Close() // which return that error
	oneLine(t, cards[0].Device.Close(), "device cuda:0: close: 1 buffers, streams and pinned regions are still open")
	mustClose(t, host[1])
	mustClose(t, mem[1])
	if n := registered.Load(); n != 0 {
		t.Errorf("%d pieces are pinned without a buffer", n)
	}
}

// GPUs that reach each other copy rows in the order of an event; others, and those that are told to, do not, and say
// why if the driver does not.
func TestPeerCopies(t *testing.T) {
	enabling := func(c string, _ int) driver.Result {
		if c == "CtxEnablePeerAccess" {
			return driver.TooManyPeers
		}
		return driver.Success
	}
	for name, c := range map[string]struct {
		gpu   standin.Options
		peers bool
		note  string
	}{
		"peers":    {standin.Options{Peers: true, MaxDelay: time.Millisecond}, true, ""},
		"no peers": {standin.Options{}, false, ""},
		"too many": {standin.Options{Peers: true, Fail: enabling}, false,
			"device cuda:0: rows of cuda:1 pass through host memory: cuCtxEnablePeerAccess: the GPU reaches " +
				"the memory of too many others"},
	} {
		t.Run(name, func(t *testing.T) {
			var notes []string
			c.gpu.Cards = 2
			cards := openCardsWith(t, c.gpu, ownProducts, func(o *cuda.Options) {
				o.Note = func(line string) {
					if strings.Contains(line, " rows of ") {
						notes = append(notes, line)
					}
				}
			})
			for range 2 { // the answer stays, and so does the note
				if got := device.Peers([]device.Device{cards[0], cards[1]}); got != c.peers {
					t.Errorf("they copy from each other: %v", got)
				}
			}
			if text := strings.Join(notes, "\n"); !strings.HasPrefix(text, c.note) || (text == "") != (c.note == "") ||
				strings.Contains(text, "\n") {
				t.Errorf("notes %q", text)
			}
			if c.peers {
				devicetest.Suite{Open: func() device.Device { return kept{cards[0]} },
					OpenPeer: func() device.Device { return kept{cards[1]} }, Only: []string{"PeerCopy"}}.Run(t)
			}
		})
	}
	told := openCardsWith(t, standin.Options{Cards: 2, Peers: true}, ownProducts, func(o *cuda.Options) {
		o.NoPeers = o.Ordinal == 1
	})
	if device.Peers([]device.Device{told[0], told[1]}) || told[0].CopiesFrom(told[1]) {
		t.Error("a device that is told not to copies")
	}
}

// Bytes that arrive damaged are found before rows are copied.
func TestDamagedPeerCopies(t *testing.T) {
	var note string
	cards := openCardsWith(t, standin.Options{Cards: 2, Peers: true}, ownProducts, func(o *cuda.Options) {
		api := *o.API
		inner := api.MemcpyPeerAsync
		api.MemcpyPeerAsync = func(dst driver.DevicePtr, to driver.Context, src driver.DevicePtr, from driver.Context,
			bytes uint64, s driver.Stream) driver.Result {
			return inner(dst, to, src, from, bytes-1, s)
		}
		o.API, o.Note = &api, func(line string) { note += line }
	})
	if cards[0].CopiesFrom(cards[1]) || !strings.Contains(note, "arrive damaged; disable the IOMMU") {
		t.Errorf("a note %q", note)
	}
}
