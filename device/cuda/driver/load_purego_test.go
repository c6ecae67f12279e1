//go:build linux && (amd64 || arm64) && !nogpu

package driver

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

// Where there is no driver, Load says so in one line. Where there is one, it loads or says what is wrong with it.
func TestLoad(t *testing.T) {
	api, err := Load()
	if err != nil {
		if text := err.Error(); api != nil || strings.Contains(text, "\n") || !strings.Contains(text, Install) {
			t.Errorf("%v: is not one line that says what to install", err)
		}
		t.Log(err)
		return
	}
	var version int32
	if r := api.DriverGetVersion(&version); r != Success || version < MinVersion {
		t.Errorf("the loaded driver is of version %d (%v)", version, r)
	}
}

// Why a library does not load is known wherever the goroutine runs that asks: a library that is missing is never one
// that is broken, and one that is broken has a reason.
func TestReasons(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(broken, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if _, err := openLibrary("libcuda-that-is-not-there.so.1"); !errors.Is(err, errNotFound) {
					t.Errorf("missing: %v", err)
					return
				}
				if _, err := openLibrary(broken); err == nil || !strings.Contains(err.Error(), broken) {
					t.Errorf("broken: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Calls go through with many arguments, of 4 and 8 bytes, in registers and on the stack: snprintf shows what C
// received.
func TestCallsIntoC(t *testing.T) {
	lib, err := openLibrary("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	var snprintf func(dst *byte, n uint64, format *byte, a, b, c, d uint32, e uintptr, f, g DevicePtr, h int32) Result
	if !lib.bind(&snprintf, "snprintf") {
		t.Fatal("libc has no snprintf")
	}
	format := append([]byte("%u %u %u %u %lx %lx %lx %d"), 0)
	got := make([]byte, 128)
	const big = 0xfedcba9876543210
	n := snprintf(&got[0], uint64(len(got)), &format[0], 1, 2, 3, 1<<32-1, 1<<48, big, 0xffffffff, -5)
	want := fmt.Sprintf("1 2 3 4294967295 %x %x ffffffff -5", uint64(1)<<48, uint64(big))
	if string(got[:n]) != want {
		t.Errorf("got %q, want %q", got[:n], want)
	}
	if lib.bind(&snprintf, "cuMemAlloc_v2") {
		t.Error("libc has cuMemAlloc_v2")
	}
}

//go:embed testdata/libcuda.c
var fakeDriver []byte

// compile makes a shared library of testdata/libcuda.c.
func compile(t testing.TB, defines ...string) (path string) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc")
	}
	dir := t.TempDir()
	path = filepath.Join(dir, "libcuda.so.1")
	source := filepath.Join(dir, "libcuda.c")
	if err := os.WriteFile(source, fakeDriver, 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-shared", "-fPIC", "-pthread", "-Wall", "-Werror", "-o", path, source}, defines...)
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return path
}

// A library in C with the driver's symbols: every function is bound, and the arguments arrive.
func TestFakeDriver(t *testing.T) {
	api, err := loadFrom([]string{"libcuda-that-is-not-there.so.1", compile(t)}, openLibrary)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("launch", func(t *testing.T) {
		a, b := uint64(0x1122334455667788), float32(2.5)
		params := []unsafe.Pointer{unsafe.Pointer(&a), unsafe.Pointer(&b)}
		var seen [11]uint64
		extra := unsafe.Pointer(&seen)
		r := api.LaunchKernel(0xf00000001, 1<<31-1, 65535, 3, 1024, 5, 6, 101376, 0xabcdef0123456789, &params[0], &extra)
		want := [11]uint64{0xf00000001, 1<<31 - 1, 65535, 3, 1024, 5, 6, 101376, 0xabcdef0123456789, a, 0x40200000}
		if r != LaunchFailed || seen != want { // the result is one that only this function returns
			t.Errorf("%v\ngot  %x\nwant %x", r, seen, want)
		}
		runtime.KeepAlive(params)
	})
	t.Run("out parameters", func(t *testing.T) {
		var p DevicePtr
		if r := api.MemAlloc(&p, 1<<40); r != Success || p != 0x700000000000+1<<40 {
			t.Errorf("MemAlloc: %v, %#x", r, p)
		}
		var free, total uint64
		if r := api.MemGetInfo(&free, &total); r != Success || free != 1<<33 || total != 1<<34 {
			t.Errorf("MemGetInfo: %v, %d, %d", r, free, total)
		}
		var ms float32
		if r := api.EventElapsedTime(&ms, 3, 4); r != Success || ms != 1.5 {
			t.Errorf("EventElapsedTime: %v, %g", r, ms)
		}
	})
	t.Run("copy", func(t *testing.T) {
		host := make([]byte, 16)
		dst := DevicePtr(uintptr(unsafe.Pointer(&host[0])))
		if r := api.MemsetD8Async(dst, 0xab, 5, 7); r != Success || host[4] != 0xab || host[5] != 0 {
			t.Errorf("MemsetD8Async: %v, %x", r, host)
		}
		src := []byte("0123456789")
		if r := api.MemcpyHtoDAsync(dst, unsafe.Pointer(&src[0]), 10, 7); r != Success || string(host[:10]) != "0123456789" {
			t.Errorf("MemcpyHtoDAsync: %v, %q", r, host)
		}
		runtime.KeepAlive(host)
	})
	// The driver starts threads, and the kernel may choose one of them for ctrl-C.
	t.Run("signals", func(t *testing.T) {
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGUSR1)
		defer signal.Stop(got)
		for range 3 {
			if r := api.Init(uint32(syscall.SIGUSR1)); r != Success {
				t.Fatal(r)
			}
			<-got // blocks without end if a signal to a thread of the driver is lost
		}
	})
	t.Run("errors", func(t *testing.T) {
		if r := api.StreamWaitEvent(1, 2, 3); r != 321 {
			t.Errorf("StreamWaitEvent: %v", r)
		}
	})
}

// A driver that only a folder has, which the linker does not search, is found; one that the linker finds by name
// comes first.
func TestFolders(t *testing.T) {
	for _, folder := range folders {
		if !filepath.IsAbs(folder) || strings.HasSuffix(folder, "/-linux-gnu") {
			t.Errorf("%s is no folder of drivers", folder)
		}
	}
	var opened []string
	open := func(there ...string) func(string) (handle, error) {
		opened = nil
		return func(path string) (handle, error) {
			opened = append(opened, path)
			if !slices.Contains(there, path) {
				return 0, errNotFound
			}
			return openLibrary(path)
		}
	}
	empty, full := t.TempDir(), compile(t)
	list := places([]string{"libcuda.so.1"}, []string{empty, filepath.Dir(full), "/later"})
	want := []string{"libcuda.so.1", filepath.Join(empty, "libcuda.so.1"), full}
	if _, err := loadFrom(list, open(full)); err != nil || !slices.Equal(opened, want) {
		t.Errorf("looked at %q: %v", opened, err)
	}
	if _, err := loadFrom(list, open()); !errors.Is(err, ErrMissing) || len(opened) != len(list) {
		t.Errorf("looked at %q: %v", opened, err)
	}
}

func TestFakeDriversThatAreNotGood(t *testing.T) {
	for _, c := range []struct{ name, define, want string }{
		{"old", "-DVERSION=11080", "supports CUDA 11.8, and 12.0 is needed"},
		{"lacks a symbol", "-DWITHOUT_STREAM_WAIT_EVENT", "CUDA 12.4) lacks cuStreamWaitEvent; " + Install},
		{"empty", "-DEMPTY", "is not a CUDA driver"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := loadFrom([]string{compile(t, c.define)}, openLibrary)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	t.Run("no library", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "libcuda.so.1")
		if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := loadFrom([]string{path}, openLibrary)
		if err == nil || !strings.Contains(err.Error(), "does not load") || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
	})
}

// BenchmarkLaunchKernel measures the host's cost of a launch without the driver's own work: the fake driver does next
// to nothing.
func BenchmarkLaunchKernel(b *testing.B) {
	api, err := loadFrom([]string{compile(b)}, openLibrary)
	if err != nil {
		b.Fatal(err)
	}
	x, y := uint64(1), float32(2)
	params := []unsafe.Pointer{unsafe.Pointer(&x), unsafe.Pointer(&y)}
	var seen [11]uint64
	extra := unsafe.Pointer(&seen)
	b.ReportAllocs()
	for b.Loop() {
		api.LaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, 1, &params[0], &extra)
	}
}
