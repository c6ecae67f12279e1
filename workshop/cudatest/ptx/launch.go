package ptx

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/internal/fault"
)

// A Config describes the launch of a kernel.
type Config struct {
	Grid, Block [3]uint32 // blocks, and threads of a block
	SharedBytes uint32    // of the extern .shared array
	Params      []byte    // the parameter block: each at its Param.Offset
	// Skip counts the grid's first blocks, which are not run. A test can so look at the end of a grid that is too
	// large to run.
	Skip uint64
	// Workers counts the goroutines that run blocks; below 2, blocks run in order on the caller's goroutine.
	Workers int
	// WarpInstructions bounds the instructions of a warp before the launch ends with ErrBudget; 0 is 1<<26.
	WarpInstructions int64
}

const (
	defaultBudget    = 1 << 26
	maxRegisterBytes = 256 << 20 // of a block
)

// Launch runs the kernel, blocks in order. It returns a *Fault if the launch fails; memory is then in any state.
func (k *Kernel) Launch(mem Memory, grid, block [3]uint32, sharedBytes uint32, params []byte) error {
	return k.Run(mem, Config{Grid: grid, Block: block, SharedBytes: sharedBytes, Params: params})
}

// launch has what the blocks of one launch share.
type launch struct {
	Config
	kernel  *Kernel
	memory  Memory
	params  []byte
	atomics sync.Mutex
	next    atomic.Uint64 // the block that a worker takes
	failed  atomic.Bool
}

func (l *launch) threads() int { return int(l.Block[0] * l.Block[1] * l.Block[2]) }

// The extern .shared array begins at dynamicAt: after the kernel's own variables, at the largest alignment that
// .align can demand.
func (k *Kernel) dynamicAt() int { return alignUp(k.SharedBytes, maxAlign) }

func (l *launch) sharedBytes() int { return l.kernel.dynamicAt() + int(l.SharedBytes) }

// Run is Launch with options.
func (k *Kernel) Run(mem Memory, c Config) error {
	refuse := func(format string, args ...any) error {
		return &Fault{Kernel: k.Name, Err: fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))}
	}
	l := &launch{Config: c, kernel: k, memory: mem, params: c.Params}
	if l.WarpInstructions <= 0 {
		l.WarpInstructions = defaultBudget
	}
	for i, limit := range [3]uint32{1<<31 - 1, 1<<16 - 1, 1<<16 - 1} {
		if c.Grid[i] < 1 || c.Grid[i] > limit {
			return refuse("a grid of %v blocks", c.Grid)
		}
	}
	for i, limit := range [3]uint32{1024, 1024, 64} {
		if c.Block[i] < 1 || c.Block[i] > limit {
			return refuse("blocks of %v threads", c.Block)
		}
	}
	threads := l.threads()
	if threads > 1024 || k.MaxThreads > 0 && threads > k.MaxThreads || k.ExactThreads && threads != k.MaxThreads {
		return refuse("blocks of %d threads where the kernel has %d", threads, k.MaxThreads)
	}
	if c.SharedBytes > maxSharedBytes || l.sharedBytes() > maxSharedBytes {
		return refuse("%d bytes of shared memory", uint64(k.dynamicAt())+uint64(c.SharedBytes))
	}
	if len(c.Params) != k.paramBytes {
		return refuse("%d bytes of parameters where the kernel has %d", len(c.Params), k.paramBytes)
	}
	count := (threads + lanes - 1) / lanes
	if bytes := count * lanes * (4*k.rows[narrow] + 8*k.rows[wide] + k.localBytes); bytes > maxRegisterBytes {
		return refuse("%d bytes of registers and local memory in a block", bytes)
	}
	blocks := uint64(c.Grid[0]) * uint64(c.Grid[1]) * uint64(c.Grid[2])
	l.next.Store(min(c.Skip, blocks))
	workers := int(min(uint64(max(c.Workers, 1)), blocks))
	if workers == 1 {
		return l.work(blocks)
	}
	errs := make([]error, workers)
	var wg fault.Group
	for i := range workers {
		wg.Go(func() { errs[i] = l.work(blocks) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// work runs blocks until all have run or one has failed.
func (l *launch) work(blocks uint64) error {
	b := newBlock(l)
	if reusesBlocks {
		defer func() {
			b.launch = nil // memory and parameters are the caller's
			l.kernel.idle.Put(b)
		}()
	}
	for !l.failed.Load() {
		i := l.next.Add(1) - 1
		if i >= blocks {
			return nil
		}
		x, y := uint64(l.Grid[0]), uint64(l.Grid[1])
		b.id = [3]uint32{uint32(i % x), uint32(i / x % y), uint32(i / x / y)}
		if err := b.run(); err != nil {
			l.failed.Store(true)
			return err
		}
	}
	return nil
}

// A block is the threads that share memory and barriers. It is used for one grid block after another.
type block struct {
	launch *launch
	id     [3]uint32
	shared []byte
	warps  []*warp
	states []status
}

// newBlock makes a block, or takes one that an earlier launch of the kernel has left.
func newBlock(l *launch) *block {
	k := l.kernel
	b := &block{}
	if reusesBlocks {
		if idle, ok := k.idle.Get().(*block); ok {
			b = idle
		}
	}
	b.launch = l
	b.shared = resized(b.shared, l.sharedBytes())
	b.states = resized(b.states, (l.threads()+lanes-1)/lanes)
	b.warps = b.warps[:min(len(b.warps), len(b.states))]
	for len(b.warps) < len(b.states) {
		b.warps = append(b.warps, &warp{
			r32: make([]uint32, k.rows[narrow]*lanes), r64: make([]uint64, k.rows[wide]*lanes),
			predicates: make([]uint32, k.predicates), local: make([]byte, k.localBytes*lanes),
			first: len(b.warps) * lanes, block: b,
		})
	}
	for _, w := range b.warps {
		w.setConstants(false)
	}
	return b
}

// resized is a slice of a length; its elements are whatever they were.
func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// Poison is NaN in each float type and no valid address.
const (
	poison8  = 0xff
	poison32 = 0xffffffff
	poison64 = 0xffffffffffffffff
)

func fillPoison[T any](s []T, v T) {
	n := min(len(s), 64)
	for i := range s[:n] {
		s[i] = v
	}
	for ; n < len(s); n *= 2 {
		copy(s[n:], s[:n])
	}
}

// setConstants fills the rows of the constants: all, or only what the next block has otherwise.
func (w *warp) setConstants(onlyNext bool) {
	for _, c := range w.block.launch.kernel.constants {
		if onlyNext && c.file != predicates && (c.reg < ctaidX || c.reg > ctaidZ) {
			continue
		}
		switch {
		case c.file == predicates:
			w.predicates[c.row] = uint32(c.value)
		case c.file == wide:
			for i, d := 0, w.wide(c.row); i < lanes; i++ {
				d[i] = c.value
				if c.reg != noSpecial {
					d[i] = w.special(c.reg, i)
				}
			}
		default:
			for i, d := 0, w.narrow(c.row); i < lanes; i++ {
				d[i] = uint32(c.value)
				if c.reg != noSpecial {
					d[i] = uint32(w.special(c.reg, i))
				}
			}
		}
	}
}

// reset puts a warp at the start of the kernel, in the block that is next.
func (w *warp) reset() {
	l := w.block.launch
	fillPoison(w.r32[:l.kernel.registers[narrow]*lanes], poison32)
	fillPoison(w.r64[:l.kernel.registers[wide]*lanes], poison64)
	fillPoison(w.local, poison8)
	clear(w.predicates)
	w.setConstants(true)
	w.carry, w.pc, w.parked, w.async, w.steps, w.err = 0, 0, w.parked[:0], async{}, l.WarpInstructions, nil
	w.alive = all
	if rest := l.threads() - w.first; rest < lanes {
		w.alive = 1<<rest - 1
	}
	w.active = w.alive
}

// run executes the block: each warp until it waits, again and again.
func (b *block) run() error {
	fillPoison(b.shared, poison8)
	for i, w := range b.warps {
		w.reset()
		b.states[i] = ready
	}
	for {
		ran := false
		for i, w := range b.warps {
			if b.states[i] != ready {
				continue
			}
			ran = true
			b.states[i] = w.run(b.launch.kernel.code)
			if b.states[i] == failed {
				return b.fault(w)
			}
		}
		if b.open() || ran {
			continue
		}
		for i, w := range b.warps {
			if b.states[i] == atBarrier {
				w.pc--
				w.fail(lowest(w.alive), fmt.Errorf("%w: the barrier waits for warps that do not come", ErrDivergence))
				return b.fault(w)
			}
		}
		return nil // all have ended
	}
}

// open lets the warps of full barriers continue.
func (b *block) open() bool {
	var arrived, wanted [16]int
	alive := 0
	for i, w := range b.warps {
		if b.states[i] != done {
			alive += lanes
		}
		if b.states[i] == atBarrier {
			arrived[w.waits.id] += lanes
			wanted[w.waits.id] = w.waits.threads
		}
	}
	opened := false
	for i, w := range b.warps {
		if b.states[i] != atBarrier {
			continue
		}
		want := wanted[w.waits.id]
		if want == 0 {
			want = alive
		}
		if arrived[w.waits.id] >= want {
			b.states[i] = ready
			opened = true
		}
	}
	return opened
}

// fault says where a warp failed.
func (b *block) fault(w *warp) error {
	in := b.launch.kernel.code[w.pc]
	return &Fault{
		Kernel: b.launch.kernel.Name, Instruction: in.op, Line: in.line, Block: b.id, Thread: w.first + w.lane%lanes,
		Err: w.err,
	}
}
