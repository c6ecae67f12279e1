package standin_test

import (
	"testing"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// pair is a rig with two cards, and the second one's context.
type pair struct {
	*rig
	other driver.Context
}

func openPair(t *testing.T) *pair { return openPairOf(t, standin.Options{Cards: 2}) }

func openPairOf(t *testing.T, o standin.Options) *pair {
	p := &pair{rig: start(t, o)}
	p.ok(p.DevicePrimaryCtxRetain(&p.other, 1))
	return p
}

// on makes calls in the context of a card, and those after it in the context of card 0.
func (p *pair) on(context driver.Context, do func()) {
	p.Helper()
	p.ok(p.CtxSetCurrent(context))
	do()
	p.ok(p.CtxSetCurrent(p.context))
}

func (p *pair) close() string {
	p.Helper()
	p.ok(p.DevicePrimaryCtxRelease(1))
	return p.problems()
}

// Host memory is registered once in a process, and all cards can use it if it is portable.
func TestRegistrationsOfCards(t *testing.T) {
	p := openPair(t)
	both, own := make([]byte, 64), make([]byte, 64)
	p.ok(p.MemHostRegister(pointer(both), 64, driver.MemHostRegisterPortable|driver.MemHostRegisterDeviceMap))
	p.ok(p.MemHostRegister(pointer(own), 64, driver.MemHostRegisterDeviceMap))
	p.on(p.other, func() {
		again := p.MemHostRegister(pointer(both[32:]), 32, driver.MemHostRegisterPortable)
		p.want(driver.HostMemoryAlreadyRegistered, again)
		p.want(driver.InvalidHandle, p.MemHostUnregister(pointer(both)))
		var at driver.DevicePtr
		p.ok(p.MemHostGetDevicePointer(&at, pointer(both), 0))
		p.want(driver.InvalidValue, p.MemHostGetDevicePointer(&at, pointer(own), 0))
		s, a := p.stream(), p.alloc(64)
		p.ok(p.MemcpyHtoDAsync(a, pointer(both), 64, s))
		p.ok(p.MemcpyHtoDAsync(a, pointer(own), 64, s))
		p.ok(p.StreamSynchronize(s))
		p.ok(p.MemFree(a))
		p.ok(p.StreamDestroy(s))
	})
	p.ok(p.MemHostUnregister(pointer(both)))
	p.ok(p.MemHostUnregister(pointer(own)))
	problems := p.close()
	says(t, problems, "overlap with what was registered at card_test.go:",
		"MemHostUnregister: the registration of card_test.go:",
		"belongs to card 0, and the context of card 1 is current", "or for another card alone",
		"MemcpyHtoDAsync: 64 bytes of host memory are not registered")
	if n := countLines(p.standin.Check()); n != 4 {
		t.Errorf("%d problems instead of 4:\n%s", n, problems)
	}
}

// An event orders work of two cards, and belongs to one of them for all else.
func TestEventsOfCards(t *testing.T) {
	p := openPair(t)
	s, e, release := p.stream(), p.event(), make(chan struct{})
	mem := make([]byte, 16)
	p.ok(p.MemHostRegister(pointer(mem), 16, driver.MemHostRegisterPortable))
	a := p.alloc(16)
	p.hold(s, release)
	p.ok(p.MemsetD8Async(a, 7, 16, s))
	p.ok(p.MemcpyDtoHAsync(pointer(mem), a, 16, s))
	p.ok(p.EventRecord(e, s))
	p.on(p.other, func() {
		t, b := p.stream(), p.alloc(16)
		p.ok(p.StreamWaitEvent(t, e, 0))
		p.ok(p.MemcpyHtoDAsync(b, pointer(mem), 16, t))
		p.want(driver.InvalidHandle, p.EventRecord(e, t))
		p.want(driver.InvalidHandle, p.StreamWaitEvent(s, e, 0))
		var ms float32
		p.want(driver.InvalidHandle, p.EventElapsedTime(&ms, e, e))
		p.want(driver.InvalidHandle, p.EventDestroy(e))
		close(release)
		p.ok(p.EventSynchronize(e))
		out := p.pinned(16)
		p.ok(p.MemcpyDtoHAsync(pointer(out), b, 16, t))
		p.ok(p.StreamSynchronize(t))
		if out[15] != 7 {
			p.Errorf("card 1 did not wait for card 0: %d", out[15])
		}
		p.ok(p.MemHostUnregister(pointer(out)))
		delete(p.host, &out[0])
		p.ok(p.MemFree(b))
		p.ok(p.StreamDestroy(t))
	})
	p.ok(p.MemHostUnregister(pointer(mem)))
	p.ok(p.MemFree(a))
	p.ok(p.StreamDestroy(s))
	p.ok(p.EventDestroy(e))
	says(t, p.close(), "EventRecord: the event of rig_test.go:", "StreamWaitEvent: the stream of rig_test.go:",
		"EventElapsedTime: the event of", "EventDestroy: the event of")
	if n := countLines(p.standin.Check()); n != 4 {
		t.Errorf("%d problems instead of 4", n)
	}
}

// Kernels, streams and memory of a card are of no use to another; a kernel that tries loses its own context alone.
func TestMemoryOfCards(t *testing.T) {
	p := openPair(t)
	s, a, f := p.stream(), p.alloc(64), p.function("go", "add")
	p.on(p.other, func() {
		t := p.stream()
		p.want(driver.InvalidHandle, p.launch1(f, t, 1, a, 1))
		p.want(driver.InvalidHandle, p.MemsetD8Async(a, 0, 64, s))
		p.want(driver.InvalidValue, p.MemsetD8Async(a, 0, 64, t))
		p.want(driver.InvalidHandle, p.MemFree(a))
		own := p.function("go", "add")
		p.ok(p.launch1(own, t, 1, a, 1))
		p.want(driver.IllegalAddress, p.StreamSynchronize(t))
		p.want(driver.IllegalAddress, p.StreamDestroy(t))
		p.want(driver.IllegalAddress, p.ModuleUnload(p.modules[1]))
		p.modules = p.modules[:1]
	})
	p.ok(p.launch1(f, s, 1, a, 1))
	p.ok(p.StreamSynchronize(s))
	p.ok(p.MemFree(a))
	p.ok(p.StreamDestroy(s))
	says(t, p.close(), "LaunchKernel: the module of rig_test.go:", "MemsetD8Async: the stream of rig_test.go:",
		"MemFree: the memory of", "are memory of card 0 (allocated at rig_test.go:", "which card 1 does not reach")
	if n := countLines(p.standin.Check()); n != 5 {
		t.Errorf("%d problems instead of 5: %v", n, p.standin.Check())
	}
}

// A copy between two cards names both contexts, and asks for no access; without it the bytes take the way through host
// memory. All else that touches memory of another card needs access, which is given in one direction.
func TestPeerAccess(t *testing.T) {
	for _, c := range []struct {
		name   string
		peers  bool
		enable driver.Result
		says   []string
	}{
		{"peers", true, driver.Success, nil},
		{"no peers", false, driver.PeerAccessUnsupported, []string{
			"CtxEnablePeerAccess: card 1 does not reach card 0",
			"MemcpyPeerAsync: 64 bytes pass through host memory, as card 1 has no access to the other one's"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := openPairOf(t, standin.Options{Cards: 2, Peers: c.peers})
			var can, self int32
			p.ok(p.DeviceCanAccessPeer(&can, 1, 0))
			p.ok(p.DeviceCanAccessPeer(&self, 1, 1))
			if (can == 1) != c.peers || self != 0 {
				t.Errorf("card 1 can access card 0: %d, and itself: %d", can, self)
			}
			s, a := p.stream(), p.alloc(64)
			p.ok(p.MemsetD8Async(a, 7, 64, s))
			p.ok(p.StreamSynchronize(s))
			out := make([]byte, 64)
			p.ok(p.MemHostRegister(pointer(out), 64, driver.MemHostRegisterPortable))
			p.on(p.other, func() {
				t, b := p.stream(), p.alloc(64)
				p.want(c.enable, p.CtxEnablePeerAccess(p.context, 0))
				if c.peers {
					p.want(driver.PeerAccessAlreadyEnabled, p.CtxEnablePeerAccess(p.context, 0))
					p.ok(p.MemcpyDtoDAsync(b, a, 64, t))
					p.ok(p.StreamSynchronize(t))
				}
				p.ok(p.MemsetD8Async(b, 1, 64, t))
				p.ok(p.MemcpyPeerAsync(b, p.other, a, p.context, 64, t))
				p.ok(p.MemcpyDtoHAsync(pointer(out), b, 64, t))
				p.ok(p.StreamSynchronize(t))
				if out[0] != 7 || out[63] != 7 {
					p.Errorf("%d and %d arrive", out[0], out[63])
				}
				p.ok(p.MemFree(b))
				p.ok(p.StreamDestroy(t))
			})
			p.ok(p.MemHostUnregister(pointer(out)))
			p.ok(p.MemFree(a))
			p.ok(p.StreamDestroy(s))
			says(t, p.close(), c.says...)
			if n := countLines(p.standin.Check()); n != len(c.says) {
				t.Errorf("%d problems: %v", n, p.standin.Check())
			}
		})
	}
}

// The driver refuses access to what is no other context, and copies that name the wrong one.
func TestBadPeers(t *testing.T) {
	p := openPairOf(t, standin.Options{Cards: 2, Peers: true})
	s, a, b := p.stream(), p.alloc(64), driver.DevicePtr(0)
	p.on(p.other, func() { b = p.alloc(64) })
	p.want(driver.InvalidValue, p.CtxEnablePeerAccess(p.other, 1))
	p.want(driver.InvalidContext, p.CtxEnablePeerAccess(p.context, 0))
	p.want(driver.InvalidContext, p.CtxEnablePeerAccess(99, 0))
	p.want(driver.InvalidValue, p.MemcpyDtoDAsync(a, b, 64, s)) // no access yet
	p.ok(p.CtxEnablePeerAccess(p.other, 0))
	p.want(driver.InvalidContext, p.MemcpyPeerAsync(a, p.context, b, 99, 64, s))
	p.want(driver.InvalidValue, p.MemcpyPeerAsync(a, p.other, b, p.context, 64, s)) // of each the other's context
	p.want(driver.InvalidValue, p.MemcpyPeerAsync(a, p.context, b, p.other, 65, s))
	p.on(p.other, func() { // access goes one way
		t := p.stream()
		p.want(driver.InvalidValue, p.MemcpyDtoDAsync(b, a, 64, t))
		p.want(driver.InvalidHandle, p.MemcpyPeerAsync(b, p.other, a, p.context, 64, s))
		p.ok(p.StreamDestroy(t))
		p.ok(p.MemFree(b))
	})
	p.ok(p.MemFree(a))
	p.ok(p.StreamDestroy(s))
	says(t, p.close(), "CtxEnablePeerAccess: flags 0x1", "is no context of another card", "or 0x63 is no context",
		"are memory of card 1", "are memory of card 0")
	if n := countLines(p.standin.Check()); n < 8 {
		t.Errorf("%d problems: %v", n, p.standin.Check())
	}
}
