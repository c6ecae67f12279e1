package driver

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// fakeLibrary has every symbol but one; its driver is of the given version.
type fakeLibrary struct {
	version int32
	result  Result
	lacks   string
}

func (l fakeLibrary) bind(fn any, symbol string) bool {
	if symbol == l.lacks {
		return false
	}
	f := reflect.ValueOf(fn).Elem()
	f.Set(reflect.MakeFunc(f.Type(), func(args []reflect.Value) []reflect.Value {
		if symbol == "cuDriverGetVersion" {
			args[0].Elem().SetInt(int64(l.version))
		}
		return []reflect.Value{reflect.ValueOf(l.result)}
	}))
	return true
}

func TestBind(t *testing.T) {
	api, err := bindAll(fakeLibrary{version: MinVersion}, "libcuda.so.1")
	if err != nil {
		t.Fatal(err)
	}
	fields := reflect.ValueOf(api).Elem()
	symbols := map[string]bool{}
	for i := range fields.NumField() {
		f := fields.Type().Field(i)
		symbol := f.Tag.Get("cuda")
		if fields.Field(i).IsNil() {
			t.Errorf("%s is not bound", f.Name)
		}
		if name, _, _ := strings.Cut(symbol, "_v"); name != "cu"+f.Name {
			t.Errorf("%s is bound to %q", f.Name, symbol)
		}
		if symbols[symbol] {
			t.Errorf("two fields are bound to %s", symbol)
		}
		symbols[symbol] = true
	}
}

func TestLibrariesThatAreNoDriver(t *testing.T) {
	for _, c := range []struct {
		name string
		lib  fakeLibrary
		want string
	}{
		{"old", fakeLibrary{version: 11080},
			"the NVIDIA driver (libcuda.so.1) supports CUDA 11.8, and 12.0 is needed; " + Install},
		{"very old, and lacks a symbol", fakeLibrary{version: 9000, lacks: "cuDevicePrimaryCtxRelease_v2"},
			"the NVIDIA driver (libcuda.so.1) supports CUDA 9.0, and 12.0 is needed; " + Install},
		{"lacks a symbol", fakeLibrary{version: 13010, lacks: "cuMemHostRegister_v2"},
			"the NVIDIA driver (libcuda.so.1, CUDA 13.1) lacks cuMemHostRegister_v2; " + Install},
		{"stub", fakeLibrary{result: StubLibrary},
			"libcuda.so.1 is the CUDA toolkit's stub and not the driver; take it off LD_LIBRARY_PATH, or " + Install},
		{"broken", fakeLibrary{result: 803},
			"cuDriverGetVersion: libcuda and the kernel module differ in version: reboot after an update (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)"},
		{"something else", fakeLibrary{lacks: "cuDriverGetVersion"},
			"libcuda.so.1 is not a CUDA driver: it lacks cuDriverGetVersion; " + Install},
	} {
		t.Run(c.name, func(t *testing.T) {
			api, err := bindAll(c.lib, "libcuda.so.1")
			if api != nil || err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestSearch(t *testing.T) {
	open := func(there map[string]error) func(string) (fakeLibrary, error) {
		return func(path string) (fakeLibrary, error) {
			if err, ok := there[path]; ok {
				return fakeLibrary{version: MinVersion}, err
			}
			return fakeLibrary{}, errNotFound
		}
	}
	for _, c := range []struct {
		name  string
		there map[string]error
		want  string
	}{
		{"first", map[string]error{"a": nil}, ""},
		{"second", map[string]error{"b": nil}, ""},
		{"none", nil, "there is no NVIDIA driver: a was not found; " + Install},
		{"broken before good", map[string]error{"a": errors.New("a: invalid ELF header"), "b": nil},
			"the NVIDIA driver's library does not load: a: invalid ELF header; " + Install},
	} {
		t.Run(c.name, func(t *testing.T) {
			api, err := loadFrom([]string{"a", "b"}, open(c.there))
			switch {
			case c.want == "" && (err != nil || api == nil):
				t.Errorf("got %v", err)
			case c.want != "" && (err == nil || err.Error() != c.want):
				t.Errorf("got  %v\nwant %s", err, c.want)
			case errors.Is(err, ErrMissing) != (c.name == "none"):
				t.Errorf("whether there is no driver: %v", errors.Is(err, ErrMissing))
			}
		})
	}
}

func TestErrors(t *testing.T) {
	if err := Success.Err("cuMemAlloc"); err != nil {
		t.Errorf("success is the error %v", err)
	}
	err := OutOfMemory.Err("cuMemAlloc")
	if got, want := err.Error(), "cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var e *Error
	if !errors.As(err, &e) || e.Result != OutOfMemory {
		t.Errorf("%v does not carry its result", err)
	}
	if got, want := Result(12345).Err("cuInit").Error(), "cuInit: error 12345"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Result(12345).String(), "CUresult 12345"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	names := map[string]Result{}
	for r, known := range results {
		if other, ok := names[known.name]; ok {
			t.Errorf("%d and %d are both %s", r, other, known.name)
		}
		names[known.name] = r
		if known.text == "" || strings.Contains(known.text, "\n") {
			t.Errorf("%v: %q is not one line", r, known.text)
		}
	}
}
