package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
)

// memoryCommand has this program measure memory, in a process of its own, which the system ends first if there is too
// little:
//
//	gpucheck memory touch 110GiB
//	gpucheck memory pin 16GiB
const memoryCommand = "memory"

// touchedMemory is what touching told.
type touchedMemory struct {
	BeforeBytes  int64   `json:"before_bytes"` // available
	TouchedBytes int64   `json:"touched_bytes"`
	AfterBytes   int64   `json:"after_bytes"` // available, once it was given back
	Seconds      float64 `json:"seconds"`
}

// pinnedMemory is what pinning told.
type pinnedMemory struct {
	Bytes       int64   `json:"bytes"`
	OneSeconds  float64 `json:"one_seconds"`  // one thread
	FourSeconds float64 `json:"four_seconds"` // four threads, a quarter each
	DeviceBytes int64   `json:"device_bytes"` // that the GPU has less of
	HostBytes   int64   `json:"host_bytes"`   // that the host has less of
}

func memoryMain(args []string, stdout, stderr io.Writer) int {
	result, err := func() (any, error) {
		if len(args) != 2 {
			return nil, errors.New("memory: give touch or pin, and a size such as 16GiB")
		}
		// If memory runs out, other processes are worth more than this one.
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0o666)
		text, unit := strings.TrimSuffix(args[1], "GiB"), int64(1<<30)
		if m, ok := strings.CutSuffix(args[1], "MiB"); ok {
			text, unit = m, 1<<20
		}
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("memory: %q is no size; give one such as 16GiB", args[1])
		}
		switch args[0] {
		case "touch":
			return touch(n * unit)
		case "pin":
			return pin(n * unit)
		}
		return nil, fmt.Errorf("memory: %q is not touch or pin", args[0])
	}()
	if err == nil {
		err = json.NewEncoder(stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(stderr, "gpucheck:", err)
		return exitFailed
	}
	return exitDone
}

// floorBytes must stay available: what is touched beyond may cost a process its life.
const floorBytes = 6 << 30

// touch makes memory resident in pieces, for as long as the system says that there is more: some machines have memory
// added as it is used.
func touch(bytes int64) (*touchedMemory, error) {
	r := &touchedMemory{}
	var err error
	if r.BeforeBytes, _, err = hostmem.Available(); err != nil {
		return nil, err
	}
	floor := min(int64(floorBytes), r.BeforeBytes/4)
	begin := time.Now()
	const piece = 1 << 30
	accounts := hostmem.New()
	accounts.GrowOnUse(true)
	var pieces []*hostmem.Region
	for r.TouchedBytes < bytes {
		if free, _, err := hostmem.Available(); err != nil || free < floor {
			break
		}
		b, err := accounts.Reserve("touched", min(piece, bytes-r.TouchedBytes))
		if err != nil {
			break
		}
		pieces = append(pieces, b)
		if err := b.Populate(); err != nil {
			break
		}
		r.TouchedBytes += b.Len()
	}
	r.Seconds = time.Since(begin).Seconds()
	for _, b := range pieces {
		err = errors.Join(err, b.Close())
	}
	if err != nil {
		return nil, err
	}
	r.AfterBytes, _, err = hostmem.Available()
	return r, err
}

// pin registers host memory with the driver, and looks what is missing then.
func pin(bytes int64) (*pinnedMemory, error) {
	api, err := loadDriver()
	if err != nil {
		return nil, err
	}
	var d driver.Device
	var ctx driver.Context
	if err := errors.Join(api.Init(0).Err("cuInit"), api.DeviceGet(&d, 0).Err("cuDeviceGet"),
		api.DevicePrimaryCtxRetain(&ctx, d).Err("cuDevicePrimaryCtxRetain")); err != nil {
		return nil, err
	}
	with := func(f func() error) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return errors.Join(api.CtxSetCurrent(ctx).Err("cuCtxSetCurrent"), f())
	}
	region, err := hostmem.New().Reserve("pinned", bytes)
	if err != nil {
		return nil, err
	}
	defer region.Close()
	if err := region.Populate(); err != nil {
		return nil, err
	}
	r := &pinnedMemory{Bytes: bytes}
	start := unsafe.Pointer(unsafe.SliceData(region.Bytes()))
	free := func() (device, host int64, err error) {
		var f, t uint64
		err = with(func() error { return api.MemGetInfo(&f, &t).Err("cuMemGetInfo") })
		host, _, hostErr := hostmem.Available()
		return int64(f), host, errors.Join(err, hostErr)
	}
	register := func(threads int64) (float64, error) {
		part := bytes / threads / hostmem.PageBytes * hostmem.PageBytes
		begin := time.Now()
		var mu sync.Mutex
		var wg fault.Group
		var all error
		for i := range threads {
			wg.Go(func() {
				err := with(func() error {
					return api.MemHostRegister(unsafe.Add(start, i*part), uint64(part), driver.MemHostRegisterDeviceMap).Err("cuMemHostRegister")
				})
				mu.Lock()
				defer mu.Unlock()
				all = errors.Join(all, err)
			})
		}
		wg.Wait()
		return time.Since(begin).Seconds(), all
	}
	unregister := func(threads int64) error {
		part := bytes / threads / hostmem.PageBytes * hostmem.PageBytes
		return with(func() (err error) {
			for i := range threads {
				err = errors.Join(err, api.MemHostUnregister(unsafe.Add(start, i*part)).Err("cuMemHostUnregister"))
			}
			return err
		})
	}
	device, host, err := free()
	if err != nil {
		return nil, err
	}
	if r.OneSeconds, err = register(1); err != nil {
		return nil, err
	}
	deviceLeft, hostLeft, err := free()
	if err != nil {
		return nil, err
	}
	r.DeviceBytes, r.HostBytes = device-deviceLeft, host-hostLeft
	if err := unregister(1); err != nil {
		return nil, err
	}
	if r.FourSeconds, err = register(4); err != nil {
		return nil, err
	}
	return r, unregister(4)
}
