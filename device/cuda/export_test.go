package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/cublaslt"
	"github.com/millrace/millrace/device/cuda/driver"
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

// Replace has launches of the kernel of k's name use k, loaded from an image, until undo.
func (d *Device) Replace(k *kernels.Kernel, image []byte) (undo func() error, err error) {
	var own *function
	for _, list := range d.kernels {
		for _, f := range list {
			if f.Name == k.Name {
				own = f
			}
		}
	}
	if own == nil {
		return nil, fmt.Errorf("there is no kernel %s", k.Name)
	}
	var module driver.Module
	f := &function{Kernel: k}
	entry := append([]byte(k.Entry), 0)
	err = d.with(func() error {
		if err := d.api.ModuleLoadData(&module, &image[0]).Err("cuModuleLoadData"); err != nil {
			return err
		}
		err := d.api.ModuleGetFunction(&f.handle, module, &entry[0]).Err("cuModuleGetFunction")
		if err == nil && k.SharedBytes > plainSharedBytes {
			r := d.api.FuncSetAttribute(f.handle, driver.MaxDynamicSharedSizeBytes, int32(k.SharedBytes))
			err = r.Err("cuFuncSetAttribute")
		}
		if err != nil {
			err = errors.Join(err, d.api.ModuleUnload(module).Err("cuModuleUnload"))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	before := *own
	*own = *f
	return func() error {
		*own = before
		return d.with(func() error { return d.api.ModuleUnload(module).Err("cuModuleUnload") })
	}, nil
}

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
