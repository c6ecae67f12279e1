package cuda

import (
	"errors"
	"sync"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/kernels"
)

// KeepCode makes devices that are opened from now on share the machine code of an architecture, which takes a tenth of
// a second to unpack.
func KeepCode() {
	var kept sync.Map // func() (map[string][]byte, error) by architecture
	loadCode = func(architecture string) (map[string][]byte, error) {
		load, _ := kept.LoadOrStore(architecture, sync.OnceValues(func() (map[string][]byte, error) {
			return kernels.LoadCode(architecture)
		}))
		return load.(func() (map[string][]byte, error))()
	}
}

// Fail makes the stream fail with err, as an operation would.
func (s *Stream) Fail(err error) {
	s.operands.Op, s.operands.List = "Fail", nil
	s.enqueue(func() error { return err })
}

// SetPieces makes registrations take at most pinBytes bytes at a time, and copies at most copyBytes.
func (d *Device) SetPieces(pinBytes, copyBytes int64) { d.pinBytes, d.pieceBytes = pinBytes, copyBytes }

// SetRound makes sums take the given number of chunks at a time.
func (d *Device) SetRound(chunks int) { d.roundChunks = chunks }

// TellTuned has f told of what TuneProducts compares from now on.
func (d *Device) TellTuned(f func([]cublaslt.Timed)) { d.tellTuned = f }

// CodeValues returns the numbers that codes of 8-bit moments stand for.
func CodeValues(signed bool) []float32 { return codeValues(signed) }

// Crash enqueues a kernel that writes to an address which does not exist.
func (s *Stream) Crash() {
	s.operands.Op, s.operands.List = "Crash", nil
	s.enqueue(func() error {
		return s.launch(named("add", "f32"), at(64), at(64), at(64), i32(1), i32(16), i32(16), i32(16), i32(16))
	})
}

// ScatterNormals fills memory with normal numbers, as both bf16 and fp32 read them.
func (d *Device) ScatterNormals(to device.Mem) (err error) {
	s, err := d.NewStream("normals")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return d.scatterNormals(s.(*Stream), to)
}
